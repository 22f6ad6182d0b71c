"""A report: the figures of one planned graph, which a user prints, draws, traces and keeps as JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgraph.reporting import details, page, phrases, picture, screen, snapshot, tables, trace
from memgraph.reporting.explanation import Explanation, explained
from memgraph.reporting.figures import Figures
from memgraph.reporting.frontier import Frontier
from memgraph.reporting.page_views import Views

if TYPE_CHECKING:  # rich is imported where it is used: a process that prints no report need not load it
    from rich.console import Console, ConsoleOptions, Group


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Report(Figures):
    """One planned graph: frozen, hashable, and JSON gives it back as it was.

    `str(report)` is one screen of plain text, as wide as it takes to break no word; `rich.print(report)` fits it to the
    terminal, with its titles in bold; `details()` is all of it.
    """

    @property
    def summary(self) -> str:
        """The answer to the first question of a reader: how much memory does it save, and at what price?"""
        return phrases.summary(self)

    def details(self) -> str:
        """All figures as plain text: every value that was kept, dropped or offloaded, equal ones in one row."""
        width = details.needed_width(self)
        return tables.plain(details.layout(self, max(width, tables.WIDTH)), width)

    def explain(self, what: str) -> Explanation:
        """Why the values of a module are where they are: what was chosen, what else could be, what bound it.

        what: a module path such as "model.layers.3.mlp", or the name of one value; `print` shows what comes back.
        Raises LookupError where the report knows neither, with the names that are near.
        """
        return explained(self, what)

    def html(self, path: str | os.PathLike[str], *, frontier: Frontier | None = None) -> None:
        """Write one page that explains the plan into `path`: a browser opens it from disk, without a network.

        frontier: what `memgraph.frontier` says of the same step; the page shows what more or less memory would change.
        Raises OSError where the file cannot be written.
        """
        page.write(path, Views.of_graph(self, frontier))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw both timelines, the baseline and the budget into `path`: PNG, or what its suffix says.

        Raises ModuleNotFoundError without matplotlib, and OSError where the file cannot be written.
        """
        picture.draw(self).savefig(path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write both timelines as a Chrome trace, for Perfetto, over predicted time; without times, event by event.

        Raises OSError where the file cannot be written.
        """
        trace.write(self, path)

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a memory snapshot of torch's into `path`: pytorch.org/memory_viz shows it.

        Its sizes are those that are asked for and add up to the predicted peak; each allocation says operator, source
        line, module, kind and decision. Raises OSError where the file cannot be written.
        """
        snapshot.write(self, path)

    def __repr__(self) -> str:
        unplanned = phrases.size_of(self.unplanned_peak, self.source_of_unplanned_peak)
        peaks = f"{unplanned} -> {phrases.size_of(self.predicted_peak, self.source_of_peak)}"
        return f"<Report {self.graph!r} on {self.device}: {peaks}>"

    def __str__(self) -> str:
        return tables.plain(self, screen.needed_width(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        yield screen.layout(self, options.max_width)
