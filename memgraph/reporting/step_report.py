"""A step report: what a step of training takes, as planned and as measured, to print and to keep as JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from memgraph.base.sizes import format_size
from memgraph.planner.step_plan import StepPlan
from memgraph.reporting import page, step_text, tables
from memgraph.reporting.figures import Figures
from memgraph.reporting.page_views import Views
from memgraph.reporting.report import Report
from memgraph.reporting.step_figures import StepFigures

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class StepReport(StepFigures):
    """A step of training: frozen, hashable, and JSON gives it back as it was.

    `str(report)` is plain text for logs, and fits a screen; `rich.print(report)` fits it to the terminal.
    """

    part: ClassVar[type[Figures]] = Report

    @property
    def summary(self) -> str:
        """The answer to the first question of a reader: is the budget kept?"""
        return step_text.summary(self)

    @property
    def plan(self) -> StepPlan | None:
        """The plans of all graphs of the newest round, to be kept in a file; None where none is known.

        Of each graph it is the plan that ran last; of equal graphs the one with the lowest peak. Raises PlanError where
        the graphs were compiled under options that do not go together.
        """
        plans = [part.plan for part in self.parts if part.plan is not None]
        return StepPlan.joined(plans) if plans else None

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write one page that explains the step, and the plan of each of its graphs: a browser opens it from disk.

        Raises OSError where the file cannot be written.
        """
        page.write(path, Views.of_step(self, self.summary))

    def __repr__(self) -> str:
        return f"<StepReport on {self.device}: {self.summary}; budget {format_size(self.budget)}>"

    def __str__(self) -> str:
        return tables.plain(self, step_text.needed_width(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        yield step_text.layout(self, options.max_width)
