"""What a legal graph is, as a program: every rewrite is held against the graph it was made from.

This is translation validation. Nodes are not compared by name or place but by the value they hold
(`value_numbers`): whatever a pass did, each output must still be the value that it was before. The module
shares no code with facts, planner or passes, so that a mistake there is not repeated here. A breach raises;
nothing here warns.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.verify.checks import (
    bodies,
    compare_calls,
    compare_draws,
    compare_effects,
    handles,
    metadata,
    show,
    signature,
    structure,
    values,
)
from memgraph.verify.values import SYMBOLIC, Table, describe
from memgraph.verify.walk import Numbered, Run

_RNG_STATE_INPUT = re.compile(r"(?:fwd|bwd)_rng_state_(\d+)$")


def snapshot(module: fx.GraphModule) -> fx.GraphModule:
    """A graph as it is now, to verify against later: nodes copied, constants and bodies shared."""
    return compat.copy_graph(module)


def verify_graph(
    before: fx.GraphModule, after: fx.GraphModule, *, pass_name: str, claims: Mapping[str, str] | None = None
) -> None:
    """Raises VerifyError unless `after` is a legal rewrite of `before`, one graph made of one graph.

    claims: nodes of `after` that are taken for nodes of `before`, by name; whoever says so has to show it.
    """
    _raise(pass_name, structure("graph", after))
    table = Table()
    inputs = [named_input(table, node) for node in _placeholders(before)]
    breaches = _compare_inputs("graph", _placeholders(before), _placeholders(after))
    _raise(pass_name, breaches)
    old_run, new_run = Run(table), Run(table)
    old = Numbered(before, inputs, old_run)
    numbers = {node.name: number for node, number in old.numbers.items()}
    new = Numbered(after, inputs, new_run, claims={name: numbers[source] for name, source in (claims or {}).items()})
    known = values(old)
    outputs = _Outputs("output", old.output_numbers(old_run.writes), new.output_numbers(new_run.writes), old, new)
    breaches += outputs.compare(known)
    breaches += compare_draws(old_run.draws, [("graph", event) for event in new_run.draws])
    breaches += compare_calls(old_run.once, [("graph", event) for event in new_run.once], old_run.again)
    breaches += compare_effects(old_run.effects, new_run.effects, "graph")
    breaches += metadata("graph", new, known) + bodies("graph", after)
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

    repeatable: patterns of the operators that the user has declared to be so; other custom operators run as often as
    `joint` runs them.
    """
    _raise(pass_name, structure("forward", forward) + structure("backward", backward))
    count, table = num_fwd_outputs, Table(repeatable)
    primals, late = _split_inputs(joint)
    fwd_inputs, bwd_inputs = _placeholders(forward), _placeholders(backward)
    given_fwd = [node for node in fwd_inputs if not _RNG_STATE_INPUT.match(node.name)]
    given_bwd = [node for node in bwd_inputs if not _RNG_STATE_INPUT.match(node.name)]
    breaches = _compare_inputs("forward", primals, given_fwd)
    if len(_output(forward).args[0]) < count:
        breaches.append(f"the forward returns {len(_output(forward).args[0])} outputs, not {count} or more")
    _raise(pass_name, breaches)

    joint_run, run = Run(table), Run(table)
    old = Numbered(joint, [named_input(table, node) for node in _placeholders(joint)], joint_run)
    known = values(old)
    fwd = Numbered(forward, [named_input(table, node) for node in _by_position(fwd_inputs, primals)], run)
    fwd_draws, fwd_effects, fwd_once = len(run.draws), len(run.effects), len(run.once)
    fwd_outputs = fwd.output_numbers(run.writes)

    saved = list(zip(fwd.outputs[count:], fwd_outputs[count:], strict=True))
    breaches += _crossing([value for value, _ in saved])
    symbolic = 0  # symbolic ints are the forward's last outputs and the backward's first inputs
    while symbolic < len(saved) and _is_symbolic(saved[-1 - symbolic][0]):
        symbolic += 1
    saved = saved[len(saved) - symbolic :] + saved[: len(saved) - symbolic]
    expected = [value for value, _ in saved] + late
    if len(given_bwd) != len(expected):
        breaches.append(f"the backward has {len(given_bwd)} inputs, not {len(saved)} saved and {len(late)} tangents")
    _raise(pass_name, breaches)  # the backward cannot be numbered without its inputs
    for node, source in zip(given_bwd, expected, strict=True):
        if (got := signature(node.meta.get("val"))) != (want := signature(source.meta.get("val"))):
            breaches.append(
                f"backward input {node.name} is {show(got)}, but takes {source.name}, which is {show(want)}"
            )
    numbers = iter([number for _, number in saved] + [named_input(table, node) for node in late])
    bwd = Numbered(
        backward,
        [named_input(table, node) if _RNG_STATE_INPUT.match(node.name) else next(numbers) for node in bwd_inputs],
        run,
    )

    first, second = old.output_numbers(joint_run.forward_writes), old.output_numbers(joint_run.writes)
    forward_side = _Outputs("forward output", first[:count], fwd_outputs[:count], old, fwd, stop=count)
    backward_side = _Outputs("gradient", second[count:], bwd.output_numbers(run.writes), old, bwd, start=count)
    breaches += forward_side.compare(known) + backward_side.compare(known)
    breaches += compare_draws(
        joint_run.draws,
        [("forward", event) for event in run.draws[:fwd_draws]]
        + [("backward", event) for event in run.draws[fwd_draws:]],
    )
    breaches += compare_calls(
        joint_run.once,
        [("forward" if n < fwd_once else "backward", event) for n, event in enumerate(run.once)],
        joint_run.again,
    )
    breaches += compare_effects(joint_run.effects, run.effects[:fwd_effects], "forward", run.effects[fwd_effects:])
    breaches += metadata("forward", fwd, known) + metadata("backward", bwd, known)
    breaches += bodies("forward", forward) + bodies("backward", backward)
    breaches += handles("forward", fwd) + handles("backward", bwd)
    _raise(pass_name, breaches)


def _raise(pass_name: str, breaches: Sequence[str]) -> None:
    if breaches:
        raise VerifyError(pass_name, tuple(dict.fromkeys(breaches)))


# --- inputs ---------------------------------------------------------------------------------------------


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _output(module: fx.GraphModule) -> fx.Node:
    return next(iter(module.graph.find_nodes(op="output")))


def _split_inputs(joint: fx.GraphModule) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's inputs: the forward's, and those that only the backward gets, in its order."""
    primals, tangents, seeds, states = [], [], [], []
    for node in _placeholders(joint):
        name = str(node.target)
        if "tangents" in name:
            tangents.append(node)
        elif "bwd_seed" in name or "bwd_base_offset" in name:
            seeds.append(node)
        elif type(node.meta.get("val")).__name__ == "BackwardState":
            states.append(node)
        else:
            primals.append(node)
    return primals, tangents + seeds + states


def named_input(table: Table, node: fx.Node) -> int:
    if isinstance(value := node.meta.get("val"), SYMBOLIC):
        return table.number("symbolic", type(value), value.node.expr)
    if match := _RNG_STATE_INPUT.match(node.name):
        return table.number("generator state", match[1])  # forward and backward get the same one
    return table.input(node.name)


def _by_position(inputs: Sequence[fx.Node], sources: Sequence[fx.Node]) -> Iterator[fx.Node]:
    rest = iter(sources)
    return (node if _RNG_STATE_INPUT.match(node.name) else next(rest) for node in inputs)


def _compare_inputs(where: str, old: Sequence[fx.Node], new: Sequence[fx.Node]) -> list[str]:
    if len(old) != len(new):
        return [f"the {where} has {len(new)} inputs, not {len(old)}"]
    return [
        f"{where} input {node.name} is {show(got)}, not {show(want)}"
        for source, node in zip(old, new, strict=True)
        if (got := signature(node.meta.get("val"))) != (want := signature(source.meta.get("val")))
    ]


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), SYMBOLIC)


def _crossing(saved: Sequence[Any]) -> list[str]:
    breaches = []
    for place, value in enumerate(saved):
        if not isinstance(value, fx.Node):
            breaches.append(f"saved output {place} is {value!r}: only tensors and symbolic ints may cross")
        elif isinstance(held := value.meta.get("val"), (list, tuple, dict, type(None))):
            kind = "nothing known" if held is None else f"a {type(held).__name__}"
            breaches.append(f"saved output {place} ({value.name}) is {kind}: only tensors and symbolic ints may cross")
    return breaches


# --- outputs --------------------------------------------------------------------------------------------


@dataclass
class _Outputs:
    """Outputs of one graph held against those of the graph it was made from, `old.outputs[start:stop]`."""

    label: str
    want: Sequence[Hashable]
    got: Sequence[Hashable]
    old: Numbered
    new: Numbered
    start: int = 0
    stop: int | None = None

    def compare(self, known: dict[int, fx.Node]) -> list[str]:
        old = self.old.outputs[self.start : self.stop]
        new = self.new.outputs[: self.stop]
        if len(self.want) != len(self.got):
            return [f"there are {len(self.got)} {self.label}s, not {len(self.want)}"]
        breaches = []
        for place, (want, got) in enumerate(zip(self.want, self.got, strict=True)):
            if want != got:
                breaches.append(
                    f"{self.label} {place} ({new[place]}) is not the value {_text(old[place])} of the graph "
                    f"before: {self._why(new[place], got, known)}"
                )
            if (left := signature(_held(old[place]))) != (right := signature(_held(new[place]))):
                breaches.append(f"{self.label} {place} is {show(right)}, not {show(left)}")
        shared = zip(self._shared(self.old, old), self._shared(self.new, new), strict=True)
        for place, (want, got) in enumerate(shared):
            if want != got:
                breaches.append(f"{self.label} {place} shares its storage with {got}, not with {want}")
        return breaches

    def _shared(self, graph: Numbered, outputs: Sequence[Any]) -> list[str]:
        """For each output, with which input or earlier output it shares storage."""
        first: dict[Hashable, str] = {}
        for node, number in graph.numbers.items():
            if node.op == "placeholder" and (root := graph.table.root(number)) in graph.table.inputs:
                first[("value", root)] = f"input {graph.table.inputs[root]}"
        return [
            first.setdefault(graph.storages[value], f"no input and no output before {self.label} {place}")
            if isinstance(value, fx.Node)
            else "nothing"
            for place, value in enumerate(outputs)
        ]

    def _why(self, value: Any, number: Hashable, known: dict[int, fx.Node]) -> str:
        if not isinstance(value, fx.Node):
            return "it is a constant"
        if number in known:
            return f"it is the value {_text(known[number])}"
        table, numbers = self.new.table, self.new.numbers
        pending, ancestors = [value], set()
        while pending:
            node = pending.pop()
            if node not in ancestors and numbers[node] not in known:
                ancestors.add(node)
                pending += node.all_input_nodes
        for node in self.new.module.graph.nodes:
            if node in ancestors:
                if numbers[node] in table.overwritten:
                    return f"{node.name} is read after an op has overwritten it"
                return f"the first value on the way that is not there is {describe(node)}"
        return "it is read after an op has overwritten it"


def _text(value: Any) -> str:
    return describe(value) if isinstance(value, fx.Node) else repr(value)


def _held(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, fx.Node) else value
