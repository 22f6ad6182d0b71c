"""A report on one screen: does it fit, what does it save and cost, what stands at the peak, what to do next."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memgraph.base.errors import Binding
from memgraph.base.sizes import format_size
from memgraph.facts.actions import Action, Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision
from memgraph.reporting.figures import Figures, Source
from memgraph.reporting.layers import NEARLY, Layers, ModulePath, fold, numbered
from memgraph.reporting.phrases import about, duration, off, percent, size_of, summary
from memgraph.reporting.tables import Column, Kind, Row, Table, height, page

if TYPE_CHECKING:
    from rich.console import Group

LINES = 45


@dataclasses.dataclass(frozen=True)
class Room:
    """The most rows of each table."""

    modules: int
    live: int
    refused: int
    notes: int


# The first with which all fits on one screen; the last one otherwise.
ROOMS = (Room(14, 5, 3, 3), Room(12, 5, 2, 2), Room(10, 4, 1, 1), Room(8, 3, 1, 1), Room(6, 2, 0, 0))
# Shares of their bytes in which layers that are shown as one may differ: the first share is used that leaves at most
# KINDS rows for each stack of layers, and no more rows than the table has.
DIFFERENCES = (NEARLY, 0.25, 0.5, float("inf"))
KINDS = 3
RUNS = 3  # numbers of layers are listed one by one up to so many runs of them
AMPLE = 0.1  # of the budget: room for more than this is worth a word
SLOW = 0.1  # a slow-down above it is worth one, too
HEADERS: dict[type[Action], str] = {Save: "kept", Recompute: "dropped", Offload: "offloaded"}


def layout(figures: Figures, width: int) -> Group:
    """The screen as rich text and tables. Words are broken only where `width` needs it."""
    title = f"memgraph: {figures.graph} on {figures.device}" + (" (from a warm cache)" if figures.cached else "")
    for room in ROOMS:
        tables = tuple(table.within(width) for table in _tables(figures, room))
        found = page(title, summary(figures), tables, width)
        if height(found, width) <= LINES:
            break
    return found


def needed_width(figures: Figures) -> int:
    """Columns in which no name has to be broken."""
    return max(table.width for table in _tables(figures, ROOMS[0]))


def answers(figures: Figures) -> Iterator[Row]:
    """What a reader asks first, and the answers."""
    yield "fits", _fits(figures)
    if figures.measured_peak is not None:
        told = "as predicted" if figures.as_predicted else off(figures)
        yield "measured", f"{format_size(figures.measured_peak)} in launches of this plan; {told}"
    yield "costs", _costs(figures)
    if figures.gap is not None:
        yield "at best", "; ".join(_at_best(figures))
    yield "stands", _stands(figures)
    for tier, name in (("host", "host memory"), ("nvme", "the disk")):
        if moved := figures.bytes_on(tier):
            yield f"to {name}", f"{format_size(moved)} a step, out and back"
    yield "next", "; ".join(_next(figures))


def _fits(figures: Figures) -> str:
    peak = size_of(figures.predicted_peak, figures.source_of_peak)
    known = f"by the {figures.source_of_peak}"
    if figures.budget is None:
        return f"no budget was asked for; the peak is {peak} ({known})"
    spare = figures.budget - figures.reserve - figures.predicted_peak
    held = f", {format_size(figures.reserve)} of it held back" if figures.reserve else ""
    asked = "" if figures.requested.isdecimal() else f" (asked for: {figures.requested})"
    told = f"{format_size(abs(spare))} {'to spare' if spare >= 0 else 'OVER the budget'}"
    fits = "yes" if spare >= 0 else "no"
    return f"{fits}: {peak} ({known}) of {format_size(figures.budget)}{asked}{held}: {told}"


def _costs(figures: Figures) -> str:
    price = [f"{duration(figures.recompute_time)} of it recomputation"]
    if figures.stall_time:
        price.append(f"{duration(figures.stall_time)} waiting for copies")
    if figures.drag_time:
        price.append(f"{duration(figures.drag_time)} taken by copies from the work beside them")
    slower = "" if figures.slowdown is None else f", {100 * figures.slowdown:+.1f} %"
    times = f"{duration(figures.unplanned_time)} -> {duration(figures.predicted_time)} a step{slower}"
    return f"{times} ({', '.join(price)})"


def _at_best(figures: Figures) -> Iterator[str]:
    """How far the plan is from what no plan can beat."""
    assert figures.gap is not None
    yield f"at most {percent(figures.gap)} slower than any plan of this kind under this budget"
    if figures.byte_price:
        room = 2 ** (max(figures.above, 1).bit_length() - 4)  # a sixteenth to an eighth of the step's own
        yield f"{format_size(room)} more would save about {duration(figures.byte_price * room)}"
    if figures.least_peak is not None:
        yield f"no such plan peaks below {about(Source.SWEEP)}{format_size(figures.least_peak)}"


def _stands(figures: Figures) -> str:
    parts = [f"{format_size(figures.baseline)} when the step starts"]
    if figures.to_come:
        parts.append(f"{format_size(figures.to_come)} to come (state of the optimizer)")
    return f"{', '.join(parts)}; {format_size(figures.above)} are the step's own"


def _next(figures: Figures) -> Iterator[str]:
    """What a reader may do now."""
    kinds = {type(decision.action) for decision in figures.decisions}
    spare = 0 if figures.budget is None else figures.budget - figures.reserve - figures.predicted_peak
    if not figures.as_predicted:
        yield "memgraph.step_report() shows the step as measured"
    elif spare < 0:
        yield "see what was refused"
    elif figures.budget is not None and spare > AMPLE * figures.budget:
        yield f"there is room for {format_size(spare)} more: a longer sequence or a larger batch"
    if figures.slowdown is not None and figures.slowdown > SLOW:
        levers = [name for name, kind in (("offload", Offload), ("tile", Tile)) if kind not in kinds]
        if levers:
            yield f"the options {' and '.join(levers)} may lower the {percent(figures.slowdown)} that it costs"
    if not figures.calibrated:
        yield "`memgraph calibrate` measures this machine: the times are built in"
    yield 'report.html("report.html") to look at it; report.details() for all'


def _tables(figures: Figures, room: Room) -> Iterator[Table]:
    """The tables that have rows."""
    decisions = figures.decisions
    actions = [kind for kind in HEADERS if any(isinstance(d.action, kind) for d in decisions)]
    columns = [Column(HEADERS[action], Kind.NUMBER) for action in actions]
    tiled = any(isinstance(decision.action, Tile) for decision in decisions)
    shards = (Column("shards"),) if tiled else ()
    module, number = Column("module"), Column("bytes", Kind.NUMBER)
    refused = [(refusal.what, refusal.reason) for refusal in figures.refusals]
    tables = (
        Table("", (Column(), Column(kind=Kind.SENTENCE)), tuple(answers(figures))),
        Table(
            "Modules (sums over equal layers)",
            (module, *columns, Column("in time", Kind.NUMBER), *shards),
            tuple(_module_rows(decisions, actions, tiled, room.modules)),
        ),
        Table(
            "Live at the predicted peak",
            (number, Column("times", Kind.NUMBER), Column("value"), module, Column("source", Kind.PLACE)),
            tuple(_live_rows(figures.binding, room.live)),
        ),
        Table("Refused", (Column("what"), Column("why", Kind.SENTENCE)), _first(refused, room.refused)),
        Table("Notes", (Column(kind=Kind.SENTENCE),), _first([(note,) for note in figures.notes], room.notes)),
    )
    yield from (table for table in tables if table.rows)


def _first(rows: Sequence[Row], most: int) -> tuple[Row, ...]:
    if len(rows) <= most:
        return tuple(rows)
    if not most:
        return ((f"{len(rows)}: report.details()", *[""] * (len(rows[0]) - 1)),)
    return (*rows[:most], (f"{len(rows) - most} more", *[""] * (len(rows[0]) - 1)))


def _module_rows(
    decisions: Sequence[Decision], actions: Sequence[type[Action]], tiled: bool, most: int
) -> Iterator[Row]:
    """One row for each set of equal layers, and where there is room one for each of its parts, in the graph's order."""
    groups, alike = _folded(decisions, most)
    shards = _shards(decisions) if tiled else {}
    several = [group for group in groups if len(group.parts()) > 1]
    room = most - len(groups)
    for group in groups[: most if len(groups) <= most else most - 1]:
        count = len(group.numbers)
        times = f"  x{count}" + ("" if group.equal else f", {alike}") if count > 1 else ""
        told = [shards.get(group.stem, "")] if tiled else []
        label = numbered(group.stem, group.numbers, RUNS) or "(no module)"
        yield (*_module_row(label + times, [decision for _, decision in group.members], actions), *told)
        parts = group.parts()
        if group in several and len(parts) <= room:
            room -= len(parts)
            for part, some in parts.items():
                yield (*_module_row(f"  .{part}" if part else "  itself", some, actions), *[""] * tiled)
    if len(groups) > most:
        left = groups[most - 1 :]
        members = [decision for group in left for _, decision in group.members]
        yield (*_module_row(f"{len(left)} more", members, actions), *[""] * tiled)


def _folded(decisions: Sequence[Decision], most: int) -> tuple[list[Layers], str]:
    """Sets of layers that are alike, a few of each kind, and how to call those that are not equal."""
    for nearly in DIFFERENCES:
        groups = fold(decisions, nearly)
        kinds = collections.Counter(group.stem for group in groups if group.numbers != [""])
        if len(groups) <= most and max(kinds.values(), default=0) <= KINDS:
            break
    return groups, "nearly equal" if nearly == NEARLY else "alike"


def _module_row(label: str, decisions: Iterable[Decision], actions: Sequence[type[Action]]) -> Row:
    total, seconds = collections.Counter[type[Action]](), 0.0
    for decision in decisions:
        seconds += decision.seconds
        if not decision.fused:
            total[type(decision.action)] += decision.bytes
    sizes = [format_size(total[action]) if total[action] else "-" for action in actions]
    return label, *sizes, duration(seconds) if seconds else "-"


def _shards(decisions: Iterable[Decision]) -> dict[str, str]:
    """By the stem of layers, the shards of their token regions."""
    found: dict[str, dict[str, None]] = {}
    for decision in decisions:
        if isinstance(decision.action, Tile):
            path = ModulePath.of(decision.module)
            kind = decision.module.rpartition(".")[2]
            found.setdefault(path.stem, {})[f"{kind} {decision.action.shards}" if path.number else ""] = None
            if not path.number:
                found[path.stem] = {str(decision.action.shards): None}
    return {stem: ", ".join(filter(None, told)) for stem, told in found.items()}


def _live_rows(binding: Iterable[Binding], most: int) -> Iterator[Row]:
    """What stands at the peak, the largest sums first; a value that every layer has is one row."""
    alike: dict[Any, list[Binding]] = {}
    for tensor in binding:
        path = ModulePath.of(tensor.module)
        alike.setdefault((tensor.bytes, path.stem, path.rest, tensor.source), []).append(tensor)
    ordered = sorted(alike.items(), key=lambda item: -sum(tensor.bytes for tensor in item[1]))
    for (_, stem, rest, source), same in ordered[:most]:
        module = numbered(stem, [ModulePath.of(tensor.module).number for tensor in same], RUNS) + rest
        size = sum(tensor.bytes for tensor in same)
        yield format_size(size), f"x{len(same)}", same[0].name, module, os.path.basename(source)
    if left := ordered[most:]:
        tensors = [tensor for _, same in left for tensor in same]
        yield format_size(sum(tensor.bytes for tensor in tensors)), f"x{len(tensors)}", "others", "", ""
