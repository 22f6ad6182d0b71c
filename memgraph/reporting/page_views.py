"""The views of a page, which a reader chooses from: a graph, or what several graphs are parts of."""

from __future__ import annotations

from typing import Any

from memgraph.reporting import page_data, phrases
from memgraph.reporting.figures import Figures
from memgraph.reporting.frontier import Frontier
from memgraph.reporting.step_figures import StepFigures


class Views:
    """The views of one page in their order, as plain data, and the graphs that they show."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        """The graphs, as `page_data.part` has them."""
        self.views: list[dict[str, Any]] = []
        """A view says its kind, the name of its tab, its title and summary; a graph, which part it is, and behind which
        tab it is shown where it has none of its own."""

    @classmethod
    def of_graph(cls, figures: Figures, frontier: Frontier | None = None) -> Views:
        """The page of one graph.  frontier: of its step, where it was planned for many budgets."""
        views = cls()
        views.graph(figures, frontier=frontier)
        return views

    @classmethod
    def of_step(cls, figures: StepFigures, summary: str) -> Views:
        """The page of a step of training, and of the graphs that it runs."""
        views = cls()
        views.step(figures, summary)
        return views

    @property
    def title(self) -> str:
        """Of the first view."""
        return self.views[0]["title"]

    def add(self, kind: str, *, name: str, title: str, summary: str, **data: Any) -> None:
        """Add a view, after those that are there."""
        self.views.append({"kind": kind, "name": name, "title": title, "summary": summary, **data})

    def graph(
        self,
        figures: Figures,
        *,
        name: str = "",
        frontier: Frontier | None = None,
        step: StepFigures | None = None,
        under: int | None = None,
    ) -> int:
        """Add the view of a graph; returns which part it is.

        step: that it is a graph of, where that is known.  under: the view whose tab it is shown behind; None for a tab
        of its own, with `name`.
        """
        self.parts.append(page_data.part(figures, frontier, None if step is None else step.outside))
        part = len(self.parts) - 1
        title = f"{figures.graph} on {figures.device}"
        self.add(
            "graph", name=name or figures.graph, title=title, summary=phrases.summary(figures), part=part, under=under
        )
        return part

    def step(self, figures: StepFigures, summary: str, *, name: str = "the step", tabs: bool = True) -> None:
        """Add the view of a step, and those of its graphs.  summary: of the step.  tabs: whether each has a tab."""
        data, under = page_data.step(figures), None if tabs else len(self.views)
        self.add("step", name=name, title=f"a step on {figures.device}", summary=summary, step=data)
        data["views"] = {}  # of its graphs, by their names
        for part in figures.parts:
            data["views"].setdefault(part.graph, len(self.views))
            self.graph(part, step=figures, under=under)
