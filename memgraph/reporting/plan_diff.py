"""Two plans side by side: what each takes, and which modules' decisions differ."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgraph.base.errors import PlanError
from memgraph.base.sizes import format_size
from memgraph.planner.step_plan import StepPlan
from memgraph.reporting import page, page_diff, tables
from memgraph.reporting.differences import Change, Takes, changes, differences, matched, orders
from memgraph.reporting.figures import Figures
from memgraph.reporting.phrases import duration
from memgraph.reporting.report import Report
from memgraph.reporting.step_report import StepReport
from memgraph.reporting.tables import Column, Kind, Row, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

ROWS = 24  # of modules on one screen


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """The difference of two plans; `str` of it is one screen, `html` a page."""

    first: Takes
    second: Takes
    changes: tuple[Change, ...]
    """The largest first; empty where the plans decide the same."""

    notes: tuple[str, ...] = ()
    """Where the plans are of different graphs, or run a forward in another order."""

    reports: tuple[tuple[Figures, ...], tuple[Figures, ...]] = dataclasses.field(default=((), ()), repr=False)
    """The graphs of the two reports that were compared; none of a plan file, which knows no timeline."""

    @property
    def same(self) -> bool:
        """Whether both plans decide the same about the same graphs, and run them in the same order."""
        return not self.changes and not self.notes

    def __str__(self) -> str:
        return tables.plain(self, max(table.width for table in self._tables()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        shown = tuple(table.within(options.max_width) for table in self._tables())
        yield tables.page("memgraph: two plans", self._answer(), shown, options.max_width)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of the difference, and of each graph of the two reports: a browser opens it from disk.

        Raises OSError where the file cannot be written.
        """
        page.write(path, page_diff.views(self.reports, self.changes, self.notes, tuple(self._sums()), self._answer()))

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


def diff(first: StepPlan | Report | StepReport, second: StepPlan | Report | StepReport) -> PlanDiff:
    """What two plans of a step decide differently; `str` of it is one screen, and its `html` a page.

    Graphs are matched by what they compute. Of those that are in one plan alone, the decisions on values of the same
    name are compared, and a note says where the graphs differ. Of two reports their plans are compared, and the page
    has their curves over each other.

    Raises PlanError for a report without a plan, or of graphs that were compiled under different options.
    """
    one, two = _plan(first), _plan(second)
    pairs, notes = matched(one, two)
    notes += orders(pairs)
    reports = (_graphs(first), _graphs(second))
    return PlanDiff(Takes.of(one), Takes.of(two), changes(differences(pairs)), tuple(notes), reports)


def _plan(given: StepPlan | Report | StepReport) -> StepPlan:
    found = given if isinstance(given, StepPlan) else given.plan
    if found is None:
        raise PlanError(f"{given!r} has no plan: its graph runs without one, or an earlier version made it")
    return found


def _graphs(given: StepPlan | Report | StepReport) -> tuple[Figures, ...]:
    if isinstance(given, StepPlan):
        return ()
    return (given,) if isinstance(given, Report) else given.parts


def _compared(one: int, two: int) -> Row:
    more = two - one
    told = f"{'+' if more > 0 else '-'}{format_size(abs(more))}" if more else "-"
    return format_size(one), format_size(two), told
