"""The reports of several ranks beside each other: what each peaks at, and which one is the tightest."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from memgraph.base.sizes import format_size
from memgraph.reporting import page, tables
from memgraph.reporting.page_views import Views
from memgraph.reporting.report import Report
from memgraph.reporting.step_report import StepReport
from memgraph.reporting.tables import Column, Kind, Row, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

AnyReport: TypeAlias = Report | StepReport


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank, in bytes."""

    name: str
    """Such as "rank 3"; where its report does not know its rank, "report 3"."""
    report: AnyReport

    @property
    def peak(self) -> int | None:
        """The predicted peak, or the measured one where that is higher; None where none is known."""
        known = (self.report.predicted_peak, self.report.measured_peak)
        return max((peak for peak in known if peak is not None), default=None)

    @property
    def spare(self) -> int | None:
        """What the peak leaves of the budget; negative where it passes it; None where there is no bound."""
        if self.report.budget is None or self.peak is None:
            return None
        return self.report.budget - self.report.reserve - self.peak


@dataclasses.dataclass(frozen=True)
class RankReports:
    """The reports of several ranks; `str` of it is a table, `html` a page with a tab for each."""

    ranks: tuple[Rank, ...]

    @classmethod
    def of(cls, reports: Iterable[AnyReport]) -> RankReports:
        """Reports of single graphs or of steps, by rank; those that know none keep their order, behind the others."""
        given = sorted(reports, key=lambda report: (report.rank is None, report.rank or 0))
        names = [f"report {n}" if each.rank is None else f"rank {each.rank}" for n, each in enumerate(given, 1)]
        several = collections.Counter(names)
        graphs = [each.graph if isinstance(each, Report) else "the step" for each in given]
        told = (f"{name}: {graph}" if several[name] > 1 else name for name, graph in zip(names, graphs, strict=True))
        return cls(tuple(map(Rank, told, given)))

    @property
    def tightest(self) -> Rank:
        """The rank with the least room below its budget; where not all have one, the rank with the highest peak."""
        spare = [rank.spare for rank in self.ranks]
        if None not in spare:
            return min(self.ranks, key=lambda rank: rank.spare or 0)
        return max(self.ranks, key=lambda rank: rank.peak or 0)

    @property
    def summary(self) -> str:
        """Which rank is the tightest, to read."""
        rank = self.tightest
        if rank.spare is None:
            return f"{rank.name} has the highest peak: {_size(rank.peak)}"
        what = "to spare" if rank.spare >= 0 else "OVER its budget"
        return f"{rank.name} is the tightest: {_size(rank.peak)}, {format_size(abs(rank.spare))} {what}"

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write one page: all ranks beside each other, and each behind a tab; a browser opens it from disk.

        Raises OSError where the file cannot be written.
        """
        page.write(path, self.views())

    def views(self) -> Views:
        """The views of the page."""
        found = Views()
        rows: list[dict[str, object]] = []
        title = f"{len(self.ranks)} ranks"
        found.add("ranks", name="all ranks", title=title, summary=self.summary, ranks=rows)
        for rank in self.ranks:
            report = rank.report
            rows.append(
                {
                    "name": rank.name,
                    "device": report.device,
                    "level": report.level,
                    "predicted": report.predicted_peak,
                    "measured": report.measured_peak,
                    "budget": report.budget,
                    "spare": rank.spare,
                    "tightest": rank is self.tightest,
                    "view": len(found.views),
                }
            )
            if isinstance(report, Report):
                found.graph(report, name=rank.name)
            else:
                found.step(report, report.summary, name=rank.name, tabs=False)
        return found

    def __str__(self) -> str:
        return tables.plain(self, self._table().width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        yield tables.page(f"memgraph: {len(self.ranks)} ranks", self.summary, (self._table(),), options.max_width)

    def _table(self) -> Table:
        number = Kind.NUMBER
        names = ("level", "predicted peak", "measured peak", "budget", "to spare")
        columns = (Column("rank"), Column("device"), *(Column(name, number) for name in names))
        return Table("", columns, tuple(map(self._row, self.ranks)))

    def _row(self, rank: Rank) -> Row:
        report = rank.report
        sizes = (report.level, report.predicted_peak, report.measured_peak, report.budget, rank.spare)
        star = " *" if rank is self.tightest else ""
        return rank.name + star, report.device, *map(_size, sizes)


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)
