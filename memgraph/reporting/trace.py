"""Figures as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

A trace has a counter of allocated bytes (baseline included) for each timeline, one for the budget, and beside them a
slice for each phase and each event. The time axis is the order of events: 1 us is one event, not a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memgraph.planner.decisions import Timeline
from memgraph.reporting.figures import Figures


def write(figures: Figures, path: str | os.PathLike[str]) -> None:
    """Write the trace of both timelines, unplanned and planned."""
    events = [_metadata("process_name", 0, f"memgraph: {figures.graph} on {figures.device}")]
    timelines = {"unplanned": figures.unplanned_timeline, "planned": figures.timeline}
    for thread, (name, timeline) in enumerate(timelines.items(), start=1):
        events += _thread(name, thread, timeline, figures.level)
    if figures.budget is not None:
        end = max(len(timeline.events) for timeline in timelines.values())
        events += [_counter("budget", 0, figures.budget), _counter("budget", end, figures.budget)]
    about = {"graph": figures.graph, "time axis": "order of events: 1 us is one event, not a time"}
    Path(path).write_text(json.dumps({"traceEvents": events, "otherData": about}), encoding="utf-8")


def _thread(name: str, thread: int, timeline: Timeline, baseline: int) -> Iterator[dict[str, Any]]:
    """The slices of one timeline, and its counter."""
    yield _metadata("thread_name", thread, name)
    for phase in ("forward", "backward"):
        if inside := [i for i, event in enumerate(timeline.events) if event.phase == phase]:
            yield _slice(phase, thread, inside[0], len(inside), {})
    yield _counter(name, 0, baseline)
    for i, (event, above) in enumerate(zip(timeline.events, timeline.sums(), strict=True)):
        yield _slice(event.label, thread, i, 1, {"bytes": event.bytes})
        yield _counter(name, i + 1, baseline + above)


def _metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}


def _slice(name: str, thread: int, start: int, length: int, facts: dict[str, int]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": facts}


def _counter(name: str, at: int, size: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 1, "tid": 0, "ts": at, "args": {"bytes": size}}
