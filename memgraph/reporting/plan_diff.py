"""Two plans side by side: what each takes, and which modules' decisions differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision
from memgraph.planner.step_plan import GraphPlan, StepPlan
from memgraph.reporting.layers import ModulePath, numbered
from memgraph.reporting.phrases import duration
from memgraph.reporting.tables import Column, Kind, Row, Table, page, plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

ROWS = 24  # of modules on one screen
RUNS = 3  # numbers of layers are listed one by one up to so many runs of them
UNDECIDED = "not held"  # what the backward does not read


@dataclasses.dataclass(frozen=True)
class Takes:
    """What a step with a plan takes; of several graphs in sum, but for the peak."""

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
    """Theirs together."""


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """The difference of two plans; `str` of it is one screen."""

    first: Takes
    second: Takes
    changes: tuple[Change, ...]
    """The largest first; empty where the plans decide the same."""

    notes: tuple[str, ...] = ()
    """Where the plans are of different graphs."""

    @property
    def same(self) -> bool:
        """Whether both plans decide the same about the same graphs."""
        return not self.changes and not self.notes

    def __str__(self) -> str:
        return plain(self, max(table.width for table in self._tables()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        tables = tuple(table.within(options.max_width) for table in self._tables())
        yield page("memgraph: two plans", self._answer(), tables, options.max_width)

    def _answer(self) -> str:
        if self.same:
            return "both plans decide the same"
        more, longer = self.second.peak - self.first.peak, self.second.seconds - self.first.seconds
        size = f"{format_size(abs(more))} {'more' if more > 0 else 'less'} at its peak" if more else "the same peak"
        time = f"{duration(abs(longer))} {'slower' if longer > 0 else 'faster'}" if longer else "as fast"
        return f"the second takes {size} and is {time}"

    def _tables(self) -> Iterator[Table]:
        number = Kind.NUMBER
        yield Table(
            "",
            (Column(), Column("first", number), Column("second", number), Column("difference", number)),
            tuple(self._sums()),
        )
        columns = (
            Column("module"),
            Column("first"),
            Column("second"),
            Column("values", number),
            Column("bytes", number),
        )
        if self.changes:
            yield Table("Decisions that differ (equal layers together)", columns, tuple(self._rows()))
        if self.notes:
            yield Table("Notes", (Column(kind=Kind.SENTENCE),), tuple((note,) for note in self.notes))

    def _sums(self) -> Iterator[Row]:
        one, two = self.first, self.second
        yield "made for", one.made_for, two.made_for, ""
        yield "peak of the step itself", *_compared(one.peak, two.peak)
        longer = two.seconds - one.seconds
        sign = "+" if longer > 0 else "-"
        told = f"{sign}{duration(abs(longer))}" if longer else "-"
        yield "predicted step time", duration(one.seconds), duration(two.seconds), told
        yield "saved", *_compared(one.saved, two.saved)
        yield "recomputed", *_compared(one.recomputed, two.recomputed)
        yield "offloaded", *_compared(one.offloaded, two.offloaded)
        yield "regions in shards", str(one.tiled), str(two.tiled), f"{two.tiled - one.tiled:+}"

    def _rows(self) -> Iterator[Row]:
        shown = self.changes if len(self.changes) <= ROWS else self.changes[: ROWS - 1]
        for change in shown:
            size = format_size(change.bytes)
            yield change.module or "(no module)", change.was, change.becomes, str(change.values), size
        if left := self.changes[len(shown) :]:
            values, total = sum(change.values for change in left), sum(change.bytes for change in left)
            yield f"{len(left)} more", "", "", str(values), format_size(total)


def diff(first: StepPlan, second: StepPlan) -> PlanDiff:
    """What two plans of a step decide differently; `str` of it is one screen.

    Graphs are matched by what they compute. Of those that are in one plan alone, the decisions on values of the same
    name are compared, and a note says where the graphs differ.
    """
    pairs, notes = _matched(first, second)
    alike: dict[tuple[str, str, str, str], list[tuple[str, Decision]]] = {}
    for one, two in pairs:
        for was, becomes, decision in _differing(one, two):
            path = ModulePath.of(decision.module)
            alike.setdefault((path.stem, path.rest, was, becomes), []).append((path.number, decision))
    changes = (
        Change(
            module=numbered(stem, [number for number, _ in same], RUNS) + rest,
            was=was,
            becomes=becomes,
            values=len(same),
            bytes=sum(decision.bytes for _, decision in same),
        )
        for (stem, rest, was, becomes), same in alike.items()
    )
    ordered = sorted(changes, key=lambda change: (-change.bytes, change.module))
    return PlanDiff(Takes.of(first), Takes.of(second), tuple(ordered), tuple(notes))


Pair = tuple[GraphPlan | None, GraphPlan | None]


def _matched(first: StepPlan, second: StepPlan) -> tuple[list[Pair], list[str]]:
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


def _differing(one: GraphPlan | None, two: GraphPlan | None) -> Iterator[tuple[str, str, Decision]]:
    """The action of each plan, and the decision, of each value of which they decide differently."""
    mine, theirs = ({} if graph is None else _by_name(graph) for graph in (one, two))
    for key in dict.fromkeys((*mine, *theirs)):
        was, becomes = mine.get(key), theirs.get(key)
        one_does, other_does = _action(was, key[1]), _action(becomes, key[1])
        decision = was or becomes
        if one_does != other_does and decision is not None:
            yield one_does, other_does, decision


def _by_name(graph: GraphPlan) -> dict[tuple[str, bool], Decision]:
    """The decisions by the name that they speak of, those on regions apart from those on values."""
    return {(decision.name, isinstance(decision.action, Tile)): decision for decision in graph.plan.decisions}


def _action(decision: Decision | None, region: bool) -> str:
    if decision is None:
        return "whole" if region else UNDECIDED
    return f"{decision.action}, fused" if decision.fused else str(decision.action)


def _bytes(decisions: list[Decision], kind: type) -> int:
    return sum(d.bytes for d in decisions if isinstance(d.action, kind) and not d.fused)


def _compared(one: int, two: int) -> Row:
    more = two - one
    told = f"{'+' if more > 0 else '-'}{format_size(abs(more))}" if more else "-"
    return format_size(one), format_size(two), told
