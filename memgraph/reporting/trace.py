"""Figures as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

A trace has a counter of allocated bytes (baseline included) for each timeline, one for each kind of memory of the plan,
one for the budget, a lane for each thing that works (compute, copies out, copies back), and an arrow from each copy out
to the copy back. The time axis is predicted time. Where no times are known it is the order of events: 1 us is one
event, and beside the counters there is a slice for each event.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memgraph.planner.decisions import Doing, Timeline
from memgraph.reporting.figures import Figures
from memgraph.reporting.lifetimes import lifetimes

MICROSECONDS = 1e6
MOMENT = 1e-3  # a nanosecond: a peak between events of one time stands for so long
LANES = 10  # the number of the first lane


def write(figures: Figures, path: str | os.PathLike[str]) -> None:
    """Write the trace of both timelines, unplanned and planned. Raises OSError where the file cannot be written."""
    timed = figures.timeline.timed
    events = [_metadata("process_name", 0, f"memgraph: {figures.graph} on {figures.device}")]
    timelines = {"unplanned": figures.unplanned_timeline, "planned": figures.timeline}
    end: float = max(len(timeline.events) for timeline in timelines.values())
    if timed:
        events += _lanes(figures)
        for name, timeline in timelines.items():
            if timeline.timed:
                times = [event.at for event in timeline.events]
                events += _counters(name, times, [figures.level + above for above in timeline.sums()], figures.level)
        lives = lifetimes(figures.timeline, figures)
        for stuff, sizes in lives.sums().items():
            events += _counters(f"planned: {stuff.value}", lives.times, sizes, 0) if any(sizes) else ()
        end = _microseconds(max(timeline.events[-1].at for timeline in timelines.values() if timeline.timed))
    else:
        for thread, (name, timeline) in enumerate(timelines.items(), start=1):
            events += _ordered(name, thread, timeline, figures.level)
    if figures.budget is not None:
        events += [_counter("budget", 0, figures.budget), _counter("budget", end, figures.budget)]
    axis = "predicted time" if timed else "order of events: 1 us is one event, not a time"
    about = {"graph": figures.graph, "time axis": axis}
    Path(path).write_text(json.dumps({"traceEvents": events, "otherData": about}), encoding="utf-8")


def _lanes(figures: Figures) -> Iterator[dict[str, Any]]:
    """What is done in each lane, and an arrow from each copy out to the copy back."""
    lanes = {lane: LANES + n for n, lane in enumerate(dict.fromkeys(work.lane for work in figures.works))}
    for lane, thread in lanes.items():
        yield _metadata("thread_name", thread, lane)
    out: dict[tuple[str, str], int] = {}
    for number, work in enumerate(figures.works):
        start, length = _microseconds(work.start), _microseconds(work.end - work.start)
        name = work.name or work.doing.value
        facts = {"doing": work.doing.value}
        yield _slice(name, lanes[work.lane], start, length, facts)
        tier, _, direction = work.lane.partition(" ")
        arrow = {"cat": "copy", "name": "offload", "pid": 1, "tid": lanes[work.lane]}
        if work.doing is not Doing.COPY:
            continue
        if direction == "out":
            out[tier, work.name] = number
            yield arrow | {"ph": "s", "id": number, "ts": start + length / 2}
        elif (tier, work.name) in out:
            yield arrow | {"ph": "f", "bp": "e", "id": out[tier, work.name], "ts": start + length / 2}


def _counters(name: str, times: Sequence[float], sizes: Sequence[int], first: int) -> Iterator[dict[str, Any]]:
    """A counter over predicted time. Of several sizes at one time it shows the highest, and right after it the last."""
    yield _counter(name, 0, first)
    for at, same in itertools.groupby(zip(times, sizes, strict=True), key=lambda pair: pair[0]):
        there = [size for _, size in same]
        yield _counter(name, _microseconds(at), max(there))
        if there[-1] != max(there):
            yield _counter(name, _microseconds(at) + MOMENT, there[-1])


def _ordered(name: str, thread: int, timeline: Timeline, baseline: int) -> Iterator[dict[str, Any]]:
    """The slices of one timeline without times, and its counter."""
    yield _metadata("thread_name", thread, name)
    for phase in ("forward", "backward"):
        if inside := [i for i, event in enumerate(timeline.events) if event.phase == phase]:
            yield _slice(phase, thread, inside[0], len(inside), {})
    yield _counter(name, 0, baseline)
    for i, (event, above) in enumerate(zip(timeline.events, timeline.sums(), strict=True)):
        yield _slice(event.label, thread, i, 1, {"bytes": event.bytes})
        yield _counter(name, i + 1, baseline + above)


def _microseconds(seconds: float) -> float:
    return round(seconds * MICROSECONDS, 3)


def _metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}


def _slice(name: str, thread: int, start: float, length: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": facts}


def _counter(name: str, at: float, size: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 1, "tid": 0, "ts": at, "args": {"bytes": size}}
