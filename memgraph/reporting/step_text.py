"""The figures of a step as text and tables, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from memgraph.base.sizes import format_size
from memgraph.reporting.phrases import size_of
from memgraph.reporting.step_figures import LaunchFigures, StepFigures
from memgraph.reporting.tables import Column, Kind, Row, Table, page

if TYPE_CHECKING:
    from rich.console import Group

LAUNCHES, GRAPHS, OUTSIDE, ROUNDS = 10, 6, 4, 5  # rows of the tables


def layout(figures: StepFigures, width: int) -> Group:
    """The figures as rich text and tables. Words are broken only where `width` needs it."""
    title = f"memgraph: a step on {figures.device}, {len(figures.newest.launches)} launches, round "
    return page(f"{title}{figures.newest.number}", summary(figures), tuple(_tables(figures)), width)


def needed_width(figures: StepFigures) -> int:
    """Columns in which no name has to be broken."""
    return max(table.width for table in _tables(figures))


def summary(figures: StepFigures) -> str:
    """Whether the budget is kept, as far as that is known."""
    return _of_launches(figures) + _of_others(figures)


def _of_launches(figures: StepFigures) -> str:
    measured, predicted = figures.measured, figures.predicted_peak
    if measured is not None and measured.measured_peak is not None:
        text = f"measured {format_size(measured.measured_peak)}{_against(measured.measured_peak, figures)}"
        if measured.predicted_peak is not None:
            text += f"; predicted {format_size(measured.predicted_peak)}"
        return f"{text}; MORE THAN PREDICTED" if figures.took_more else text
    if predicted is None:
        return "nothing is known of its peak"
    return f"predicted {format_size(predicted)}{_against(predicted, figures)}; not measured"


def _of_others(figures: StepFigures) -> str:
    """What ran between the launches, where that alone passes the budget."""
    highest = max((outside.peak for outside in figures.outside), default=0)
    over = highest > figures.budget
    return f"; outside of the graphs {format_size(highest)}{_against(highest, figures)}" if over else ""


def _against(peak: int, figures: StepFigures) -> str:
    over = ", OVER the budget of " if peak > figures.budget else ", within the budget of "
    return over + format_size(figures.budget)


def _tables(figures: StepFigures) -> Iterator[Table]:
    """The tables that have rows."""
    shown = figures.measured or figures.newest
    size = [Column(name, Kind.NUMBER) for name in ("level", "held", "takes", "took", "peak", "reached")]
    times, note = Column("times", Kind.NUMBER), Column("", Kind.SENTENCE)
    tables = (
        Table("", (Column(), Column(kind=Kind.SENTENCE)), tuple(_head(figures))),
        Table(
            f"Launches of round {shown.number} (planned: held, takes above its level, peak; measured: took, reached)",
            (Column("graph"), times, *size, note),
            tuple(_launch_rows(shown.launches)),
        ),
        Table(
            "Graphs",
            (Column("graph"), *(Column(n, Kind.NUMBER) for n in ("plans", "compiled", "unplanned takes")), note),
            tuple(_graph_rows(figures)),
        ),
        Table(
            "Outside of the graphs",
            (Column("after"), Column("before"), *(Column(n, Kind.NUMBER) for n in ("level", "takes", "peak")), note),
            tuple(_outside_rows(figures)),
        ),
        Table(
            "Last rounds",
            tuple(Column(n, Kind.NUMBER) for n in ("round", "launches", "level", "predicted", "measured", "outside")),
            tuple(_round_rows(figures)),
        ),
        Table("Notes", (Column(kind=Kind.SENTENCE),), tuple((note,) for note in figures.notes)),
    )
    yield from (table for table in tables if table.rows)


def _head(figures: StepFigures) -> Iterator[Row]:
    held_back = f" ({format_size(figures.reserve)} of it held back)" if figures.reserve else ""
    yield "budget", format_size(figures.budget) + held_back
    yield "level", f"{format_size(figures.level)} (allocated when a step starts)"
    if figures.to_come:
        yield "to come", f"{format_size(figures.to_come)} (state of the optimizer, which later steps start with)"
    if (predicted := figures.predicted_peak) is not None:
        later = f"; {format_size(predicted + figures.to_come)} in later steps" if figures.to_come else ""
        yield "predicted peak", f"{format_size(predicted)} ({_spare(predicted, figures)}{later})"
    measured = figures.measured
    if measured is None:
        yield "measured peak", "not known: see the notes"
    elif measured.measured_peak is not None:
        told = "as predicted" if measured.as_predicted else "not as predicted, see its launches"
        told = "MORE than predicted, see its launches" if measured.took_more else told
        told += f"; {_spare(measured.measured_peak, figures)}"
        yield (
            "measured peak",
            f"{format_size(measured.measured_peak)} (of the launches of round {measured.number}; {told})",
        )
    if figures.highest is not None:
        yield "allocator's peak", f"{format_size(figures.highest)} (since its statistics were reset, whatever ran)"
    for optimizer in figures.optimizers:
        what = f"{format_size(optimizer.peak)} by its forecast ({_spare(optimizer.peak, figures)}): "
        what += f"{format_size(optimizer.temporaries)} for a moment, {format_size(optimizer.made)} of state"
        what += f" and {format_size(optimizer.to_come)} to come" if optimizer.to_come else ""
        yield f"{optimizer.name}.step()", f"{what}; known by {optimizer.method}. {optimizer.note}".rstrip()
    if figures.grown:
        what = ", ".join(f"{format_size(size)} {what}" for what, size in figures.grown)
        yield "grown", f"{what} (since the first plan)"


def _spare(peak: int, figures: StepFigures) -> str:
    spare = figures.budget - peak
    return f"{format_size(abs(spare))} {'to spare' if spare >= 0 else 'OVER the budget'}"


def _launch_rows(launches: tuple[LaunchFigures, ...]) -> Iterator[Row]:
    """Launches in their order; those in a row that run the same plan of the same graph are one row."""
    rows = []
    for (graph, sizes, _), some in groupby(launches, lambda launch: (launch.graph, launch.sizes, launch.held)):
        same = list(some)
        name = graph + (f" ({', '.join(map(str, sizes))})" if sizes else "")
        figures = (
            _most([launch.held for launch in same]),
            _most([launch.predicted_above for launch in same]),
            _most([launch.measured_above for launch in same]),
            _most([launch.predicted_peak for launch in same]),
            _most([launch.measured_peak for launch in same]),
        )
        off = max((launch.off for launch in same), key=abs)
        told = "planned for larger sizes" if any(launch.larger for launch in same) else ""
        told = f"{format_size(abs(off))} {'MORE' if off > 0 else 'less'} than planned" if off else told
        level = format_size(min(launch.level for launch in same))
        rows.append((name, f"x{len(same)}", level, *map(_size, figures), told))
    yield from rows[:LAUNCHES]
    if len(rows) > LAUNCHES:
        yield (f"{len(rows) - LAUNCHES} rows more", *[""] * 8)


def _graph_rows(figures: StepFigures) -> Iterator[Row]:
    for graph in figures.graphs[:GRAPHS]:
        unplanned = "-"
        if graph.unplanned_above is not None and graph.source_of_unplanned_peak is not None:
            unplanned = size_of(graph.unplanned_above, graph.source_of_unplanned_peak)
        off = f"{graph.off} of its plans not as predicted" if graph.off else ""
        yield graph.graph, str(graph.plans), str(graph.made), unplanned, off
    if len(figures.graphs) > GRAPHS:
        yield f"{len(figures.graphs) - GRAPHS} more", "", "", "", ""


def _outside_rows(figures: StepFigures) -> Iterator[Row]:
    """The highest of what ran between launches."""
    some = sorted((outside for outside in figures.outside if outside.above > 0), key=lambda outside: -outside.peak)
    for outside in some[:OUTSIDE]:
        over = "OVER the budget" if outside.peak > figures.budget else ""
        sizes = map(format_size, (outside.level, outside.above, outside.peak))
        yield outside.after, outside.before, *sizes, over


def _round_rows(figures: StepFigures) -> Iterator[Row]:
    for some in figures.rounds[-ROUNDS:]:
        peaks = map(_size, (some.predicted_peak, some.measured_peak, some.outside_peak))
        yield str(some.number), str(len(some.launches)), format_size(some.launches[0].level), *peaks


def _most(sizes: list[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)
