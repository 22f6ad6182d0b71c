"""How a report is drawn as a picture and written as a trace."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memgraph.base.sizes import format_size
from memgraph.planner.decisions import Timeline
from memgraph.reporting.report import size_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from memgraph.reporting.report import Report


def plot(report: Report, path: str | os.PathLike[str]) -> None:
    """Draw allocated memory over one step into `path`: PNG, or what its suffix says."""
    draw(report).savefig(path)


def draw(report: Report) -> Figure:
    """A picture of allocated memory over one step, unplanned and planned.

    The two timelines differ in the number of their events, so each is stretched: its forward over the left
    half of the axis, its backward over the right half.
    """
    from matplotlib.figure import Figure  # not pyplot: its state is global, and belongs to the user

    tops = [report.unplanned_peak, report.predicted_peak, report.budget or 0, report.baseline]
    unit, scale = ("GiB", 1024**3) if max(tops) >= 1024**3 else ("MiB", 1024**2)
    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for timeline, peak, source, name, colour in (
        (report.unplanned_timeline, report.unplanned_peak, report.source_of_unplanned_peak, "unplanned", "#9aa0a6"),
        (report.timeline, report.predicted_peak, report.source_of_peak, "planned", "#1a73e8"),
    ):
        xs, sums = _stretched(timeline)
        ys = [(report.baseline + above) / scale for above in sums]
        label = f"{name}, peak {size_of(peak, source)}"
        axes.plot(xs, ys, drawstyle="steps-post", color=colour, linewidth=1.4, label=label)
        axes.fill_between(xs, ys, report.baseline / scale, step="post", color=colour, alpha=0.15, linewidth=0)
        top = ys.index(max(ys))
        axes.plot(xs[top], ys[top], "o", color=colour, markersize=5)
    base = report.baseline / scale
    label = f"baseline {format_size(report.baseline)}"
    axes.fill_between([0, 2], [base, base], color="#dadce0", alpha=0.6, linewidth=0, label=label)
    if report.budget is not None:
        label = f"budget {format_size(report.budget)}"
        axes.axhline(report.budget / scale, color="#d93025", linestyle="--", linewidth=1.4, label=label)
        if report.reserve:
            label = f"less reserve {format_size(report.reserve)}"
            usable = (report.budget - report.reserve) / scale
            axes.axhline(usable, color="#d93025", linestyle=":", linewidth=1.2, label=label)
    axes.axvline(1, color="#5f6368", linewidth=0.8, zorder=0.5)
    axes.set(xlim=(0, 2), ylim=(0, 1.08 * max(tops) / scale or 1), ylabel=f"allocated ({unit})")
    axes.set_xticks([0.5, 1.5], ["forward", "backward"])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("order of events, not time", color="#5f6368", fontsize="small")
    axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # A `$` in a name would start a formula.
    axes.set_title(f"memgraph: {report.graph} on {report.device}", loc="left", parse_math=False)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


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


def trace(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a Chrome trace (JSON) that ui.perfetto.dev and chrome://tracing open.

    A counter of allocated bytes (baseline included) for each timeline, one for the budget, and beside them a
    slice for each phase and each event. The time axis is the order of events: 1 us is one event, not a time.
    """
    events: list[dict[str, Any]] = [_named("process_name", 0, f"memgraph: {report.graph} on {report.device}")]
    sides = (("unplanned", report.unplanned_timeline), ("planned", report.timeline))
    for thread, (name, timeline) in enumerate(sides, start=1):
        events.append(_named("thread_name", thread, name))
        for phase in ("forward", "backward"):
            if inside := [i for i, event in enumerate(timeline.events) if event.phase == phase]:
                events.append(_slice(phase, thread, inside[0], len(inside), {}))
        events.append(_counter(name, 0, report.baseline))
        for i, (event, above) in enumerate(zip(timeline.events, timeline.sums(), strict=True)):
            events.append(_slice(event.name, thread, i, 1, {"bytes": event.bytes}))
            events.append(_counter(name, i + 1, report.baseline + above))
    if report.budget is not None:
        end = max(len(timeline.events) for _, timeline in sides)
        events += [_counter("budget", 0, report.budget), _counter("budget", end, report.budget)]
    about = {"graph": report.graph, "time axis": "order of events: 1 us is one event, not a time"}
    Path(path).write_text(json.dumps({"traceEvents": events, "otherData": about}), encoding="utf-8")


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}


def _slice(name: str, thread: int, start: int, length: int, facts: dict[str, int]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": facts}


def _counter(name: str, at: int, size: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 1, "tid": 0, "ts": at, "args": {"bytes": size}}
