"""Figures as a picture: allocated memory over one step, unplanned and planned."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from memgraph.base.sizes import format_size
from memgraph.planner.decisions import Timeline
from memgraph.reporting.figures import Figures, Source
from memgraph.reporting.phrases import size_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, BLUE, RED = "#9aa0a6", "#1a73e8", "#d93025"


def draw(figures: Figures) -> Figure:
    """The picture. The two timelines differ in the number of their events, so each is stretched: its forward over the
    left half of the axis, its backward over the right half. Raises ModuleNotFoundError without matplotlib."""
    try:
        from matplotlib.figure import Figure  # not pyplot: its state is global, and belongs to the user
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError('a picture needs matplotlib: pip install "torch-memgraph[plot]"') from missing

    top = max(figures.unplanned_peak, figures.predicted_peak, figures.budget or 0, figures.level)
    unit, scale = ("GiB", 1024**3) if top >= 1024**3 else ("MiB", 1024**2)
    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    unplanned = ("unplanned", GREY, figures.unplanned_peak, figures.source_of_unplanned_peak)
    _curve(axes, *unplanned, figures.unplanned_timeline, figures.level, scale)
    planned = ("planned", BLUE, figures.predicted_peak, figures.source_of_peak)
    _curve(axes, *planned, figures.timeline, figures.level, scale)
    _limits(axes, figures, scale)
    axes.axvline(1, color="#5f6368", linewidth=0.8, zorder=0.5)
    axes.set(xlim=(0, 2), ylim=(0, 1.08 * top / scale or 1), ylabel=f"allocated ({unit})")
    axes.set_xticks([0.5, 1.5], ["forward", "backward"])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("order of events, not time", color="#5f6368", fontsize="small")
    axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # A `$` in a name would start a formula.
    axes.set_title(f"memgraph: {figures.graph} on {figures.device}", loc="left", parse_math=False)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _curve(
    axes: Axes, name: str, colour: str, peak: int, source: Source, timeline: Timeline, baseline: int, scale: int
) -> None:
    """One timeline above the baseline, with its peak marked."""
    xs, sums = _stretched(timeline)
    ys = [(baseline + above) / scale for above in sums]
    label = f"{name}, peak {size_of(peak, source)}"
    axes.plot(xs, ys, drawstyle="steps-post", color=colour, linewidth=1.4, label=label)
    axes.fill_between(xs, ys, baseline / scale, step="post", color=colour, alpha=0.15, linewidth=0)
    top = ys.index(max(ys))
    axes.plot(xs[top], ys[top], "o", color=colour, markersize=5)


def _limits(axes: Axes, figures: Figures, scale: int) -> None:
    """The baseline, and the budget where there is one."""
    base = figures.level / scale
    label = f"baseline {format_size(figures.level)}"
    axes.fill_between([0, 2], [base, base], color="#dadce0", alpha=0.6, linewidth=0, label=label)
    if figures.budget is None:
        return
    label = f"budget {format_size(figures.budget)}"
    axes.axhline(figures.budget / scale, color=RED, linestyle="--", linewidth=1.4, label=label)
    if figures.reserve:
        label = f"less reserve {format_size(figures.reserve)}"
        usable = (figures.budget - figures.reserve) / scale
        axes.axhline(usable, color=RED, linestyle=":", linewidth=1.2, label=label)


def _stretched(timeline: Timeline) -> tuple[list[float], list[int]]:
    """Points, the forward over 0..1 and the backward over 1..2, and bytes above the baseline from each on."""
    counts = collections.Counter(event.phase for event in timeline.events)
    start = {"forward": 0.0, "backward": 1.0}
    xs, position = [0.0], collections.Counter[str]()
    for event in timeline.events:
        xs.append(start[event.phase] + position[event.phase] / counts[event.phase])
        position[event.phase] += 1
    sums = [0, *timeline.sums()]
    return [*xs, 2.0], [*sums, sums[-1]]
