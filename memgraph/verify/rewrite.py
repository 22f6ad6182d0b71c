"""A rewritten graph held against the graph that it was made from.

This is translation validation. Nodes are compared by the values that they hold (`terms.py`), not by name or place:
whatever a pass did, each output must still be the value that it was before. What operators do is judged here without
code of facts, planner or passes, so that a mistake there is not repeated. A breach, one way in which a graph is not
legal, is an error; nothing here warns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.verify.checks import bodies, copies, holders, metadata, structure
from memgraph.verify.compare import compare_histories
from memgraph.verify.frame import History
from memgraph.verify.inputs import (
    compare_backward_inputs,
    compare_inputs,
    crossing,
    in_backward_order,
    input_term,
    input_terms,
    is_generator_state,
    placeholders,
    split_inputs,
)
from memgraph.verify.outputs import Outputs, compare_outputs
from memgraph.verify.terms import Term, Terms
from memgraph.verify.walk import Numbered, number


def snapshot(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph to verify against later: nodes are copied, constants and bodies are shared."""
    return compat.copy_graph(module)


def verify_graph(
    before: fx.GraphModule, after: fx.GraphModule, *, pass_name: str, claims: Mapping[str, str] | None = None
) -> None:
    """Raises VerifyError unless `after` is a legal rewrite of `before`, one graph made of one graph.

    claims: by name of a node of `after`, the node of `before` for which it is taken; the caller has to show it.
    """
    _raise(pass_name, structure("graph", after))
    _raise(pass_name, compare_inputs("graph", placeholders(before), placeholders(after)))
    terms = Terms()
    inputs = [input_term(terms, node) for node in placeholders(before)]
    old_history, new_history = History(terms), History(terms)
    old = number(before, inputs, old_history)
    values = {node.name: term for node, term in old.values.items()}
    claimed = {name: values[source] for name, source in (claims or {}).items()}
    new = number(after, inputs, new_history, claims=claimed)
    known = holders(old)
    breaches = compare_outputs(
        "output",
        Outputs(old, old.outputs, old.returned(old_history.writes)),
        Outputs(new, new.outputs, new.returned(new_history.writes)),
        known,
    )
    breaches += compare_histories(old_history, new_history, split=False)
    breaches += metadata(new, known) + bodies("graph", after)
    _raise(pass_name, breaches)


def verify_partition(
    joint: fx.GraphModule,
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    pass_name: str,
    repeatable: Sequence[str] = (),
) -> None:
    """Raises VerifyError unless `forward` and `backward` together do what `joint` does.

    repeatable: patterns of custom operators that the user has declared repeatable; others may run only as often as
    `joint` runs them.
    """
    NumberedJoint(joint, repeatable).verify(forward, backward, num_fwd_outputs=num_fwd_outputs, pass_name=pass_name)


class NumberedJoint:
    """A joint graph with the values of its nodes, numbered once for all forwards and backwards held against it."""

    def __init__(self, joint: fx.GraphModule, repeatable: Sequence[str] = ()) -> None:
        """repeatable: as of `verify_partition`."""
        self.primals, self.late = split_inputs(joint)
        self.terms = Terms(repeatable)
        self.history = History(self.terms)
        given = [input_term(self.terms, node) for node in placeholders(joint)]
        self.numbered = number(joint, given, self.history)
        self.known = holders(self.numbered)

    def verify(
        self, forward: fx.GraphModule, backward: fx.GraphModule, *, num_fwd_outputs: int, pass_name: str
    ) -> None:
        """Raises VerifyError unless a forward and a backward together do what the joint graph does."""
        _raise(pass_name, structure("forward", forward) + structure("backward", backward))
        _raise(pass_name, _forward_ends(forward, self.primals, num_fwd_outputs))
        terms, history, known, late = self.terms, History(self.terms), self.known, self.late
        terms.forget_bodies()  # a pass may have rewritten one in place
        given = input_terms(terms, placeholders(forward), [input_term(terms, node) for node in self.primals])
        fwd = number(forward, given, history, where="forward")
        returned = fwd.returned(history.writes)
        saved = in_backward_order(list(zip(fwd.outputs[num_fwd_outputs:], returned[num_fwd_outputs:], strict=True)))
        _raise(pass_name, crossing(fwd.outputs[num_fwd_outputs:]) + _backward_ends(backward, len(saved), len(late)))
        values = [term for _, term in saved] + [input_term(terms, node) for node in late]
        bwd = number(backward, input_terms(terms, placeholders(backward), values), history, where="backward")

        breaches = compare_backward_inputs(_own_inputs(backward), [value for value, _ in saved] + late)
        first = Outputs(fwd, fwd.outputs[:num_fwd_outputs], returned[:num_fwd_outputs])
        gradients = Outputs(bwd, bwd.outputs, bwd.returned(history.writes))
        breaches += _compare_sides(self.numbered, self.history, first, gradients, known)
        breaches += compare_histories(self.history, history, split=True)
        breaches += metadata(fwd, known) + metadata(bwd, known)
        breaches += bodies("forward", forward) + bodies("backward", backward)
        breaches += copies(fwd) + copies(bwd)
        _raise(pass_name, breaches)


def _raise(pass_name: str, breaches: Sequence[str]) -> None:
    if breaches:
        raise VerifyError(pass_name, tuple(dict.fromkeys(breaches)))


def _own_inputs(module: fx.GraphModule) -> list[fx.Node]:
    """The inputs without the generators' states that the partitioner adds."""
    return [node for node in placeholders(module) if not is_generator_state(node)]


def _forward_ends(forward: fx.GraphModule, primals: Sequence[fx.Node], count: int) -> list[str]:
    """Breaches: a forward that does not take the primals, or returns too little."""
    breaches = compare_inputs("forward", primals, _own_inputs(forward))
    outputs = len(forward.graph.output_node().args[0])
    if outputs < count:
        breaches.append(f"the forward returns {outputs} outputs, not {count} or more")
    return breaches


def _backward_ends(backward: fx.GraphModule, saved: int, late: int) -> list[str]:
    """Breaches: a backward that does not take what is saved and what comes late. Then it has no values."""
    inputs = len(_own_inputs(backward))
    if inputs == saved + late:
        return []
    return [f"the backward has {inputs} inputs, not {saved} saved and {late} tangents"]


def _compare_sides(
    old: Numbered, history: History, first: Outputs, gradients: Outputs, known: Mapping[Term, fx.Node]
) -> list[str]:
    """Breaches among the forward's own outputs and the gradients.  history: of the joint graph."""
    count = len(first.nodes)
    wanted = Outputs(old, old.outputs[:count], old.returned(history.forward_writes)[:count])
    breaches = compare_outputs("forward output", wanted, first, known)
    wanted = Outputs(old, old.outputs[count:], old.returned(history.writes)[count:])
    return breaches + compare_outputs("gradient", wanted, gradients, known)
