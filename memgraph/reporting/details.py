"""All figures of a report as tables."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memgraph.base.errors import Binding
from memgraph.base.sizes import format_size
from memgraph.facts.actions import Action, Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision
from memgraph.reporting.figures import Figures, Source
from memgraph.reporting.layers import ModulePath, fold, numbered
from memgraph.reporting.phrases import duration, off, size_of, summary
from memgraph.reporting.tables import Column, Kind, Row, Table, page

if TYPE_CHECKING:
    from rich.console import Group

FUSED = "fused, never held"

BYTES, TIMES, WHY = Column("bytes", Kind.NUMBER), Column("times", Kind.NUMBER), Column("why", Kind.SENTENCE)
VALUE, MODULE, PLACE = Column("value"), Column("module"), Column("source", Kind.PLACE)
VALUES = (VALUE, BYTES, TIMES, MODULE, PLACE, WHY)
HEADERS: dict[type[Action], str] = {Save: "saved", Recompute: "recomputed", Offload: "offloaded"}


def layout(figures: Figures, width: int) -> Group:
    """The figures as rich text and tables. Words are broken only where `width` needs it."""
    title = f"memgraph: {figures.graph} on {figures.device}" + (" (from a warm cache)" if figures.cached else "")
    return page(title, summary(figures), tuple(_tables(figures)), width)


def needed_width(figures: Figures) -> int:
    """Columns in which no name has to be broken."""
    return max(table.width for table in _tables(figures))


def _tables(figures: Figures) -> Iterator[Table]:
    """The tables that have rows."""
    decisions = figures.decisions
    modules = "Modules (sums over equal layers)"
    offloads = any(isinstance(decision.action, Offload) for decision in decisions)
    actions = (Save, Recompute, Offload) if offloads else (Save, Recompute)
    columns = (*(Column(HEADERS[action], Kind.NUMBER) for action in actions), Column("in time", Kind.NUMBER))
    shards = (Column("shards", Kind.NUMBER), Column("longest value", Kind.NUMBER))
    stage = (Column("stage"), Column("time", Kind.NUMBER))
    tables = (
        Table("", (Column(), Column(kind=Kind.SENTENCE)), tuple(_head(figures))),
        Table(modules, (MODULE, *columns, WHY), tuple(_module_rows(decisions, actions))),
        Table("Run in shards of their tokens", (MODULE, TIMES, *shards, WHY), tuple(_tile_rows(decisions))),
        Table("Values kept", VALUES, tuple(_value_rows(decisions, Save))),
        Table("Values dropped", VALUES, tuple(_value_rows(decisions, Recompute))),
        Table("Values offloaded", VALUES, tuple(_value_rows(decisions, Offload))),
        Table("Live at the predicted peak", (BYTES, VALUE, MODULE, PLACE), tuple(_binding_rows(figures.binding))),
        Table("Refused", (Column("what"), WHY), tuple((refusal.what, refusal.reason) for refusal in figures.refusals)),
        Table("Notes", (Column(kind=Kind.SENTENCE),), tuple((note,) for note in figures.notes)),
        Table("Compilation", stage, tuple(_stage_rows(figures))),
    )
    yield from (table for table in tables if table.rows)


def _head(figures: Figures) -> Iterator[Row]:
    asked = f"asked for: {figures.requested}" + (" bytes" if figures.requested.isdecimal() else "")
    if figures.reserve:
        asked += f"; {format_size(figures.reserve)} of it held back"
    yield "budget", f"{'none' if figures.budget is None else format_size(figures.budget)} ({asked})"
    yield "baseline", f"{format_size(figures.baseline)} (allocated when the step starts)"
    if figures.to_come:
        yield "to come", f"{format_size(figures.to_come)} (state that the optimizer makes in its first step, and keeps)"
    source = figures.source_of_unplanned_peak
    estimated = f", estimated by the {source}" if source == Source.SWEEP else ""
    yield "unplanned peak", f"{size_of(figures.unplanned_peak, source)} (Inductor's own partition{estimated})"
    source = figures.source_of_peak
    told = f"estimated by the {source}" if source == Source.SWEEP else f"by the {source}"
    if figures.budget is not None:
        spare = figures.budget - figures.reserve - figures.predicted_peak
        told += f"; {size_of(abs(spare), source)} {'to spare' if spare >= 0 else 'OVER the budget'}"
    yield "predicted peak", f"{size_of(figures.predicted_peak, source)} ({told})"
    if figures.measured_peak is not None:
        over = figures.budget is not None and figures.measured_peak > figures.budget - figures.reserve
        told = ("as predicted" if figures.as_predicted else off(figures)) + ("; OVER the budget" if over else "")
        yield "measured peak", f"{format_size(figures.measured_peak)} (in launches of this plan; {told})"
    for tier, name in (("host", "host memory"), ("nvme", "the disk")):
        if moved := figures.bytes_on(tier):
            yield f"offloaded to {name}", f"{format_size(moved)} a step, out and back"
    price = f"{duration(figures.recompute_time)} of it recomputation"
    if figures.stall_time:
        price += f", {duration(figures.stall_time)} waiting for copies"
    if figures.drag_time:
        price += f", {duration(figures.drag_time)} taken by copies from the work beside them"
    yield "step time", f"{duration(figures.unplanned_time)} -> {duration(figures.predicted_time)} ({price})"
    built_in = "with built-in figures, not calibrated on this machine: run `memgraph calibrate`"
    yield "times", "with figures measured on this machine" if figures.calibrated else built_in


def _module_rows(decisions: Iterable[Decision], actions: Sequence[type[Action]]) -> Iterator[Row]:
    """One row for each set of equal layers, and one for each of its parts, in the order of the graph."""
    groups = fold(decisions)
    for group in groups:
        label, count = group.label or "(no module)", len(group.numbers)
        if count > 1:
            label += f"  x{count}" + ("" if group.equal else ", nearly equal")
        yield _module_row(label, [decision for _, decision in group.members], actions)
        if len(parts := group.parts()) > 1:
            for part, some in parts.items():
                yield _module_row(f"  .{part}" if part else "  itself", some, actions)


def _module_row(label: str, decisions: Iterable[Decision], actions: Sequence[type[Action]]) -> Row:
    total, whys, seconds = collections.Counter[type[Action]](), collections.Counter[str](), 0.0
    for decision in decisions:
        seconds += decision.seconds
        if not decision.fused:
            total[type(decision.action)] += decision.bytes
        whys[f"{decision.why} ({FUSED})" if decision.fused else decision.why] += decision.bytes
    why = "; ".join(why for why, _ in whys.most_common(2) if why) + ("; ..." if len(whys) > 2 else "")
    sizes = [format_size(total[action]) if total[action] else "-" for action in actions]
    return label, *sizes, duration(seconds) if seconds else "-", why


def _tile_rows(decisions: Iterable[Decision]) -> Iterator[Row]:
    """The regions that run in shards; equal ones are one row."""
    alike: dict[Any, list[ModulePath]] = {}
    for d in decisions:
        if isinstance(d.action, Tile):
            path = ModulePath.of(d.module)
            alike.setdefault((path.stem, path.rest, d.action.shards, d.bytes, d.why), []).append(path)
    for (stem, rest, shards, size, why), same in alike.items():
        module = numbered(stem, [path.number for path in same]) + rest
        yield module or "(no module)", f"x{len(same)}", str(shards), format_size(size), why


def _value_rows(decisions: Iterable[Decision], action: type[Action]) -> Iterator[Row]:
    """The largest values with this action, largest sum first; a value that every layer has is one row."""
    alike: dict[Any, list[Decision]] = {}
    for d in decisions:
        if isinstance(d.action, action) and not d.fused:
            path = ModulePath.of(d.module)
            why = f"{d.action.tier}: {d.why}" if isinstance(d.action, Offload) else d.why
            alike.setdefault((d.bytes, path.stem, path.rest, d.source, why), []).append(d)
    for (size, stem, rest, source, why), same in sorted(alike.items(), key=_total, reverse=True):
        module = numbered(stem, [ModulePath.of(d.module).number for d in same]) + rest
        yield same[0].name, format_size(size), f"x{len(same)}", module, os.path.basename(source), why


def _total(row: tuple[Any, list[Decision]]) -> int:
    return sum(decision.bytes for decision in row[1])


def _binding_rows(binding: Iterable[Binding]) -> Iterator[Row]:
    largest = sorted(binding, key=lambda tensor: -tensor.bytes)
    for tensor in largest:
        yield format_size(tensor.bytes), tensor.name, tensor.module, os.path.basename(tensor.source)


def _stage_rows(figures: Figures) -> Iterator[Row]:
    stages: dict[str, list[float]] = {}
    for name, seconds in figures.stages:
        stages.setdefault(name, []).append(seconds)
    for name, times in stages.items():
        yield name + (f"  x{len(times)}" if len(times) > 1 else ""), duration(sum(times))
    if figures.attempts > 1:
        yield "attempts", str(figures.attempts)
    yield from figures.versions
