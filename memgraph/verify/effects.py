"""Calls that are more than functions of their arguments: draws, effects, and what may run only once.

A draw is also told apart by how often the same call was drawn before, over forward and backward together: a redraw gets
a term that no other draw has, a replay of a saved generator state gets the term of its draw. An effect is told apart by
how often the same call happened before. A call of an operator that may run only once has the term of any equal call;
its runs are counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import fx

from memgraph.verify.frame import Effect, Frame, Storage, operands_at
from memgraph.verify.operators import Schema, takes_random_numbers, target_name
from memgraph.verify.terms import Form, Term

FrozenArguments = tuple[Hashable, Hashable]
"""Positional and named arguments, frozen."""


def draw(
    frame: Frame, node: fx.Node, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], arguments: FrozenArguments
) -> Term:
    """The term of a draw by `target`, which `node` calls itself or is told to call."""
    call = (target, arguments)
    if not takes_random_numbers(target, args, kwargs):
        return frame.terms.make(target, *arguments)
    if node not in frame.live:  # nothing reads it: it only moves the generator on
        return frame.terms.make(Form.DEAD_DRAW, call)
    term = frame.terms.make(Form.DRAW, call, frame.history.count(call))
    frame.history.draws.append(Effect(term, call, frame.caller or node, frame.where))
    return term


def replay(frame: Frame, node: fx.Node) -> Term:
    """A wrapper that draws and keeps the generator's state, or draws again from a state that was kept."""
    name, history, terms = target_name(node.target), frame.history, frame.terms
    args, kwargs, state = list(node.args), dict(node.kwargs), None
    if name == "run_with_rng_state":
        state = frame.values[args.pop(0)]
    elif name == "graphsafe_run_with_rng_state":
        state = frame.values[kwargs.pop("rng_state")]
    target, *rest = args
    arguments = (frame.frozen(tuple(rest)), frame.frozen(kwargs))
    drawn, call = history.saved_draws.get(state, (None, None)) if state is not None else (None, None)
    if drawn is None or call != (target, arguments):
        drawn = draw(frame, node, target, rest, kwargs, arguments)
        if state is not None:
            history.saved_draws.setdefault(state, (drawn, (target, arguments)))
    if name != "run_and_save_rng_state":
        return drawn
    state = terms.make(Form.STATE, drawn)
    history.saved_draws[state] = (drawn, (target, arguments))
    return terms.make(Form.TUPLE, state, drawn)


def effect(frame: Frame, node: fx.Node, schema: Schema, arguments: FrozenArguments) -> tuple[Term, Storage]:
    """The term of an effect and its storage: those of the argument that it writes to, if it returns that."""
    history, call = frame.history, (node.target, arguments)
    term = frame.terms.make(Form.EFFECT, call, history.count(call))
    side = _side(frame.caller or node, mutable=bool(schema.writes))
    history.effects.append(Effect(term, call, frame.caller or node, frame.where, side))
    result: tuple[Term, Storage] = term, node
    for position, name in schema.writes:
        for operand in operands_at(node, position, name):
            before = frame.values[operand].unwritten
            history.writes[before.root] = term
            if side != "backward":
                history.forward_writes[before.root] = term
            if schema.returns_written:
                result = before, frame.storages[operand]
    return result


def run_of_once(frame: Frame, node: fx.Node, term: Term, call: Hashable, once: str) -> None:
    """Note a run of an operator that may run only once."""
    caller = frame.caller or node
    frame.history.once.append(Effect(term, call, caller, frame.where, once=once))
    if getattr(caller.meta.get("recompute"), "name", "") in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE"):
        frame.history.repeated.add(call)


def _side(node: fx.Node, *, mutable: bool) -> str | None:
    """Where AOTAutograd wants an effect: its tag says so; a mutation without one belongs to the forward."""
    tag = node.meta.get("partitioner_tag")
    if tag in ("must_be_in_forward", "must_be_in_backward"):
        return tag.removeprefix("must_be_in_")
    if mutable:
        return "backward" if tag == "is_backward" else "forward"
    return None
