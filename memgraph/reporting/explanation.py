"""Why the values of one module are where they are: what was chosen, what else could be, and what bound the choice."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Offload, Save, Tile
from memgraph.facts.regions import parents
from memgraph.planner.decisions import Decision, Described, Event
from memgraph.reporting.figures import Figures
from memgraph.reporting.phrases import duration, size_of
from memgraph.reporting.tables import Column, Kind, Row, Table, page, plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

ROWS = 30  # of values on one screen


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a plan peaks: what bounds all of its decisions."""

    phase: str
    """"forward" or "backward"."""

    event: int
    """Which change of the allocated bytes it is, counted from 1."""

    events: int
    """Of how many."""

    value: str
    """The value whose allocation reaches the peak."""

    module: str

    standing: int
    """Bytes that values of the module in question hold there."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What was decided about the values of a module, and why; `str` of it is text to read."""

    what: str
    """The module path, or the name of a value."""

    graph: str

    decisions: tuple[Decision, ...]
    """On its values and token regions, those of the modules within it too, the largest first."""

    described: tuple[Described, ...]
    """What is known of the values, in the same order."""

    peak: str
    """The peak of the plan, to read."""

    budget: int | None
    """Bytes that the step may reach; None for no bound."""

    spare: int
    """Bytes that the plan leaves of it; negative where it passes it."""

    place: Place | None
    """None where no timeline is known."""

    def __str__(self) -> str:
        return plain(self, max(table.width for table in self._tables()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        tables = tuple(self._tables())
        yield page(f"memgraph: {self.what} in {self.graph}", self._answer(), tables, options.max_width)

    def _answer(self) -> str:
        if not self.decisions:
            return "nothing of it is held for the backward: there was nothing to decide"
        parts: dict[str, list[Decision]] = {}
        for decision in self.decisions:
            parts.setdefault(_chosen(decision), []).append(decision)
        told = (f"{len(some)} {kind} ({format_size(sum(d.bytes for d in some))})" for kind, some in parts.items())
        return ", ".join(told)

    def _tables(self) -> Iterator[Table]:
        yield Table("", (Column(), Column(kind=Kind.SENTENCE)), tuple(self._bound()))
        columns = (
            Column("value"),
            Column("is"),
            Column("bytes", Kind.NUMBER),
            Column("chosen"),
            Column("costs", Kind.NUMBER),
            Column("else", Kind.SENTENCE),
            Column("why", Kind.SENTENCE),
        )
        if self.decisions:
            yield Table("Values (what else was possible, with its time by itself)", columns, tuple(self._rows()))

    def _bound(self) -> Iterator[Row]:
        if self.budget is None:
            yield "bound", f"no budget was asked for; the peak is {self.peak}"
        else:
            room = f"{format_size(abs(self.spare))} {'to spare' if self.spare >= 0 else 'OVER the budget'}"
            yield "bound", f"the budget of {format_size(self.budget)}; the plan peaks at {self.peak}: {room}"
        if (place := self.place) is not None:
            where = f" of {place.module}" if place.module else ""
            number = f"event {place.event} of {place.events}"
            yield "peak", f"in the {place.phase}, when {place.value}{where} is allocated ({number})"
            held = format_size(place.standing) if place.standing else "nothing"
            yield "there", f"{held} of {self.what} stands at that moment"

    def _rows(self) -> Iterator[Row]:
        pairs = list(zip(self.decisions, self.described, strict=True))
        for decision, known in pairs[:ROWS]:
            module = decision.module.removeprefix(self.what).lstrip(".")
            inside = f"in .{module}" if module and module != decision.module else ""
            is_ = " ".join(filter(None, (_what_is(known), inside)))
            others = "; ".join(_menu(decision))
            costs = duration(decision.seconds) if decision.seconds else "-"
            chosen = f"{decision.action}, fused" if decision.fused else str(decision.action)
            yield decision.name, is_, format_size(decision.bytes), chosen, costs, others or "nothing", decision.why
        if left := pairs[ROWS:]:
            size = format_size(sum(decision.bytes for decision, _ in left))
            yield f"{len(left)} more", "", size, "", "", "", "ask for one of the modules within, or for a value"


def explained(figures: Figures, what: str) -> Explanation:
    """Why the values of a module, or one value by its name, are where they are.

    Raises LookupError where the report knows no such module or value, with those that are near.
    """
    own = [d for d in figures.decisions if d.name == what]
    decisions = own or [d for d in figures.decisions if what in parents(d.module)]
    known = {item.name: item for item in figures.described}
    if not decisions and not any(what in parents(item.module) for item in figures.described):
        raise LookupError(_unknown(figures, what))
    ordered = sorted(decisions, key=lambda decision: -decision.bytes)
    spare = 0 if figures.budget is None else figures.budget - figures.reserve - figures.predicted_peak
    return Explanation(
        what=what,
        graph=figures.graph,
        decisions=tuple(ordered),
        described=tuple(known.get(decision.name, Described(decision.name)) for decision in ordered),
        peak=size_of(figures.predicted_peak, figures.source_of_peak),
        budget=figures.budget,
        spare=spare,
        place=_place(figures, what),
    )


def _place(figures: Figures, what: str) -> Place | None:
    """Where the plan peaks."""
    sums = figures.timeline.sums()
    if not sums:
        return None
    top = sums.index(max(sums))
    buffers, known = dict(figures.buffers), {item.name: item for item in figures.described}

    def value_of(event: Event) -> str:
        return buffers.get(event.value, event.value)

    def module_of(name: str) -> str:
        return known[name].module if name in known else ""

    modules = {decision.name: decision.module for decision in figures.decisions}
    standing = sum(
        event.bytes
        for event in figures.timeline.live_at_peak()
        if (name := value_of(event)) == what or what in parents(modules.get(name) or module_of(name))
    )
    event = figures.timeline.events[top]
    name = value_of(event)
    return Place(event.phase, top + 1, len(sums), name, module_of(name), standing)


def _unknown(figures: Figures, what: str) -> str:
    """The error of a name that the report does not know."""
    paths = [decision.module for decision in figures.decisions] + [item.module for item in figures.described]
    modules = list(dict.fromkeys(parent for path in dict.fromkeys(paths) if path for parent in parents(path)))
    names = [decision.name for decision in figures.decisions]
    ending = [path for path in modules if path.endswith(f".{what}")]  # the end of a path is what a user remembers
    near = ending[:3] or difflib.get_close_matches(what, [*modules, *names], n=3)
    hint = f"; near: {', '.join(map(repr, near))}" if near else ""
    told = hint or ("; there are " + ", ".join(map(repr, modules[:5])) if modules else "; its graph has no modules")
    return f"{figures.graph} has no module and no value {what!r} of which something was decided{told}"


def _menu(decision: Decision) -> Iterator[str]:
    """What else could have been done with a value, and what it costs: to keep it takes its bytes, all else time."""
    for action, seconds in decision.alternatives:
        costs = [format_size(decision.bytes)] if action == str(Save()) else []
        costs += [duration(seconds)] if seconds or not costs else []
        yield f"{action}: {' and '.join(costs)}"


def _chosen(decision: Decision) -> str:
    if isinstance(decision.action, Tile):
        return f"in {decision.action.shards} shards"
    if isinstance(decision.action, Offload):
        return f"offloaded to {decision.action.tier}"
    return {"save": "kept", "recompute": "dropped"}[decision.action.lever]


def _what_is(known: Described) -> str:
    shape = f"[{', '.join(map(str, known.shape))}]" if known.shape else ""
    return " ".join(filter(None, (known.operator.partition("::")[2] or known.operator, shape, known.dtype)))
