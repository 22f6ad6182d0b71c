"""What two plans of a step decide differently, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision
from memgraph.planner.step_plan import GraphPlan, StepPlan
from memgraph.reporting.layers import ModulePath, numbered

RUNS = 3  # numbers of layers are listed one by one up to so many runs of them
UNDECIDED = "not held"  # what the backward does not read


@dataclasses.dataclass(frozen=True)
class Takes:
    """What a step with a plan takes: sums over its graphs, and the highest of their peaks."""

    made_for: str
    """The budget that was asked for, and the device."""

    peak: int
    """Bytes above the level at which a step begins; the highest of its graphs."""

    seconds: float
    """Predicted."""

    saved: int
    """Bytes of values that stay."""

    recomputed: int
    """Bytes of values that are dropped and computed again."""

    offloaded: int
    """Bytes of values that leave the device."""

    tiled: int
    """Regions that run in shards."""

    @classmethod
    def of(cls, plan: StepPlan) -> Takes:
        decisions = [d for graph in plan.graphs for d in graph.plan.decisions]
        budget = "" if plan.budget is None or plan.requested.isdecimal() else f" = {format_size(plan.budget)}"
        asked = format_size(int(plan.requested)) if plan.requested.isdecimal() else plan.requested
        return cls(
            made_for=f"{asked}{budget} on {plan.hardware or plan.device}",
            peak=max(graph.peak for graph in plan.graphs),
            seconds=sum(graph.seconds for graph in plan.graphs),
            saved=_bytes(decisions, Save),
            recomputed=_bytes(decisions, Recompute),
            offloaded=_bytes(decisions, Offload),
            tiled=sum(isinstance(d.action, Tile) for d in decisions),
        )


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value, or token region, of which two plans decide differently."""

    name: str
    module: str
    bytes: int

    was: str
    """The action of the first plan, as the options spell it."""

    becomes: str
    """That of the second."""

    seconds: tuple[float, float] = (0.0, 0.0)
    """What its recomputation takes in a step of the first plan, and of the second."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Values of a module, the same in several layers, of which the two plans decide differently."""

    module: str
    """The path, with the numbers of all layers in which it is so."""

    was: str
    """The action of the first plan, as the options spell it."""

    becomes: str
    """That of the second."""

    values: int
    """How many values."""

    bytes: int
    """Of all these values."""

    members: tuple[Difference, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """The values."""


Pair: TypeAlias = "tuple[GraphPlan | None, GraphPlan | None]"
"""The plans of a graph; None where one of two steps has no such graph."""


def matched(first: StepPlan, second: StepPlan) -> tuple[list[Pair], list[str]]:
    """The graphs of two plans in pairs, and a note for each that has no equal."""
    left = list(second.graphs)
    pairs: list[Pair] = []
    alone: list[GraphPlan] = []
    for one in first.graphs:
        two = next((graph for graph in left if graph.identity.same(one.identity)), None)
        if two is None:
            alone.append(one)
        else:
            left.remove(two)
            pairs.append((one, two))
    notes: list[str] = []
    for one in alone:
        if not left:
            notes.append(f"{one.graph} is in the first plan alone")
            pairs.append((one, None))
            continue
        two = max(left, key=lambda graph: graph.identity.equal_lines(one.identity))
        left.remove(two)
        told = one.identity.first_difference(two.identity)
        told = told.replace("the plan's", "the first plan's").replace("this graph", "the second")
        notes.append(f"{one.graph} and {two.graph} are not the same graph: {told}")
        pairs.append((one, two))
    notes += [f"{graph.graph} is in the second plan alone" for graph in left]
    return [*pairs, *((None, graph) for graph in left)], notes


def orders(pairs: Iterable[Pair]) -> Iterator[str]:
    """A note for each graph whose forward two plans run in another order."""
    for one, two in pairs:
        if one is None or two is None or not one.identity.same(two.identity):
            continue
        mine, theirs = one.plan.forward, two.plan.forward
        if bool(mine) != bool(theirs):
            which = "second" if mine else "first"
            yield f"the forward of {one.graph} runs in Inductor's order in the {which} plan alone"
            continue
        common = set(mine).intersection(theirs)
        ran = ([name for name in order if name in common] for order in (mine, theirs))
        if (other := next((pair for pair in zip(*ran, strict=True) if pair[0] != pair[1]), None)) is not None:
            where = f"{other[0]} in the first plan, where {other[1]} runs in the second"
            yield f"the forward of {one.graph} runs in another order: {where}"


def differences(pairs: Iterable[Pair]) -> Iterator[Difference]:
    """The values of pairs of graphs of which their plans decide differently."""
    for one, two in pairs:
        mine, theirs = ({} if graph is None else _by_name(graph) for graph in (one, two))
        for key in dict.fromkeys((*mine, *theirs)):
            was, becomes = mine.get(key), theirs.get(key)
            one_does, other_does = _action(was, key[1]), _action(becomes, key[1])
            known = was or becomes
            if one_does != other_does and known is not None:
                times = (0.0 if was is None else was.seconds, 0.0 if becomes is None else becomes.seconds)
                yield Difference(known.name, known.module, known.bytes, one_does, other_does, times)


def changes(found: Iterable[Difference]) -> tuple[Change, ...]:
    """The differences by module and actions, equal layers together, the largest first."""
    alike: dict[tuple[str, str, str, str], list[Difference]] = {}
    for each in found:
        path = ModulePath.of(each.module)
        alike.setdefault((path.stem, path.rest, each.was, each.becomes), []).append(each)
    made = (
        Change(
            module=numbered(stem, [ModulePath.of(each.module).number for each in same], RUNS) + rest,
            was=was,
            becomes=becomes,
            values=len(same),
            bytes=sum(each.bytes for each in same),
            members=tuple(same),
        )
        for (stem, rest, was, becomes), same in alike.items()
    )
    return tuple(sorted(made, key=lambda change: (-change.bytes, change.module)))


def _by_name(graph: GraphPlan) -> dict[tuple[str, bool], Decision]:
    """The decisions by the name that they speak of, those on regions apart from those on values."""
    return {(decision.name, isinstance(decision.action, Tile)): decision for decision in graph.plan.decisions}


def _action(decision: Decision | None, region: bool) -> str:
    if decision is None:
        return "whole" if region else UNDECIDED
    return f"{decision.action}, fused" if decision.fused else str(decision.action)


def _bytes(decisions: list[Decision], kind: type) -> int:
    return sum(d.bytes for d in decisions if isinstance(d.action, kind) and not d.fused)
