"""Time against memory over the whole range of budgets, as a frozen value: what a little more or less would change."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memgraph.base.sizes import format_size
from memgraph.reporting import tables
from memgraph.reporting.phrases import duration, percent
from memgraph.reporting.tables import Column, Kind, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A point is a knee where a byte less costs at least so many times what a byte more would save.
BEND = 2.0


@dataclasses.dataclass(frozen=True)
class Point:
    """The plan of one budget."""

    budget: int
    """Bytes, baseline and reserve included."""
    peak: int
    """Bytes that its plan reaches, baseline included, by the sweep."""
    seconds: float
    """Predicted time of a step."""
    least_seconds: float | None
    """Time of a step that no plan of this kind goes below under this budget; None where that is not known."""
    recomputed: int
    """Bytes of values that the backward computes again."""
    offloaded: int
    """Bytes of values that leave the device."""
    tiled: int
    """Token regions that run in shards."""


@dataclasses.dataclass(frozen=True)
class Frontier:
    """Plans of one step from the smallest budget that can be kept up to where no budget costs time."""

    graph: str
    device: str
    baseline: int
    """Bytes that stand when a step starts, and those to come."""
    unplanned_peak: int
    """Bytes of Inductor's own partition, by the sweep, baseline included."""
    unplanned_time: float
    """Predicted seconds of a step of that."""
    least_peak: int
    """Bytes that every plan of this kind without further tiles reaches, baseline included."""
    points: tuple[Point, ...]
    """By budget, the smallest first. A larger budget is never slower."""
    reserve: int = 0
    """Bytes of each budget that are held back."""

    @property
    def smallest(self) -> int:
        """The smallest budget that a plan was found for, in bytes."""
        return self.points[0].budget

    def price(self, place: int) -> float:
        """Seconds of a step that a byte less than the budget of a point costs; 0 for the smallest one."""
        if not place:
            return 0.0
        less, more = self.points[place - 1], self.points[place]
        return (less.seconds - more.seconds) / max(1, more.budget - less.budget)

    @property
    def knees(self) -> tuple[Point, ...]:
        """Points below which a byte costs at least BEND times what it is worth above them, the smallest first.

        No knee is where a byte costs less than the average of the whole curve: plans come in steps, and the curve is
        flat behind each small step.
        """
        found = []
        least, most = self.points[0], self.points[-1]
        average = (least.seconds - most.seconds) / max(1, most.budget - least.budget)
        for place in range(1, len(self.points) - 1):
            below, above = self.price(place), self.price(place + 1)
            if below > average and below >= BEND * above:
                found.append(self.points[place])
        return tuple(found)

    def slowdown(self, point: Point) -> float:
        """Predicted time that a point adds to a step, as a fraction of Inductor's own."""
        return point.seconds / self.unplanned_time - 1 if self.unplanned_time > 0 else 0.0

    def least_slowdown(self, point: Point) -> float | None:
        """The slow-down that no plan of this kind goes below under a point's budget; None where it is not known."""
        if point.least_seconds is None:
            return None
        return self.slowdown(dataclasses.replace(point, seconds=point.least_seconds))

    def at(self, budget: int) -> Point | None:
        """The fastest point that keeps a budget in bytes; None where none does."""
        return next((point for point in reversed(self.points) if point.budget <= budget), None)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Frontier:
        """The frontier that `to_json` wrote. Raises ValueError for any other text."""
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(**data | {"points": tuple(Point(**point) for point in data["points"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a frontier of this version of memgraph: {error!r}") from error

    def __str__(self) -> str:
        table = self._table()
        title = f"memgraph: {self.graph} on {self.device}, time against memory"
        answer = (
            f"Inductor's own partition peaks at about {format_size(self.unplanned_peak)}; budgets down to "
            f"{format_size(self.smallest)} can be kept; no plan of this kind peaks below {format_size(self.least_peak)}"
        )
        text = tables.plain(tables.page(title, answer, (table,), tables.WIDTH), table.width)
        return "\n".join([text, *self._advice()])

    def _advice(self) -> list[str]:
        if not self.knees:
            return []
        named = ", ".join(f"{format_size(p.budget)} ({percent(self.slowdown(p))})" for p in self.knees)
        return [f"* knees, below which memory gets dear: {named}"]

    def _table(self) -> Table:
        names = (
            "budget",
            "peak",
            "slow-down",
            "at most from best",
            "recomputed",
            "offloaded",
            "tiled",
            "1 % less costs",
        )
        columns = tuple(Column(name, Kind.NUMBER) for name in names)
        knees = set(self.knees)
        rows = []
        for place, point in reversed(list(enumerate(self.points))):
            gap = "-" if not point.least_seconds else percent(max(0.0, point.seconds / point.least_seconds - 1))
            rows.append(
                (
                    format_size(point.budget) + (" *" if point in knees else "  "),
                    format_size(point.peak),
                    percent(self.slowdown(point)),
                    gap,
                    format_size(point.recomputed) if point.recomputed else "-",
                    format_size(point.offloaded) if point.offloaded else "-",
                    str(point.tiled) if point.tiled else "-",
                    duration(self.price(place) * point.budget / 100) if place else "-",
                )
            )
        return Table("", columns, tuple(rows))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw time against budget into `path`: PNG, or what its suffix says.

        Raises ModuleNotFoundError without matplotlib, and OSError where the file cannot be written.
        """
        _draw(self).savefig(path)


def _draw(frontier: Frontier) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError('a picture needs matplotlib: pip install "torch-memgraph[plot]"') from missing

    def percents(seconds: Sequence[float]) -> list[float]:
        return [100 * (each / frontier.unplanned_time - 1) for each in seconds]

    unit, scale = ("GiB", 1024**3) if frontier.unplanned_peak >= 1024**3 else ("MiB", 1024**2)
    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    budgets = [point.budget / scale for point in frontier.points]
    axes.plot(budgets, percents([p.seconds for p in frontier.points]), "o-", color="#1a73e8", label="plans")
    known = [point for point in frontier.points if point.least_seconds is not None]
    least = percents([point.least_seconds or 0.0 for point in known])
    axes.plot([p.budget / scale for p in known], least, "--", color="#9aa0a6", label="no plan is faster")
    axes.axvline(frontier.least_peak / scale, color="#d93025", linestyle=":", label="no plan is smaller")
    axes.set(xlabel=f"budget ({unit})", ylabel="slow-down (%)")
    axes.set_title(f"memgraph: {frontier.graph} on {frontier.device}", loc="left", parse_math=False)
    axes.grid(color="#e8eaed", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
