"""Figures as a memory snapshot of torch's, as torch.cuda.memory._dump_snapshot writes them: memory_viz shows it.

A snapshot has a trace, in which each buffer of the plan is allocated and freed, and the segments and blocks that are
there at its end. Sizes are those that are asked for, and add up to the report's peak. Places are those that torch's
caching allocator would give (memgraph/machine/caching_allocator.py), from an empty cache. In place of a stack each
allocation has what the plan knows of it: operator and source line, module, kind of memory, decision.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from memgraph.machine.caching_allocator import CachingAllocator
from memgraph.reporting.figures import Figures
from memgraph.reporting.lifetimes import Buffer, Lifetimes, lifetimes

PROTOCOL = 4  # the newest that memory_viz reads
START = 0x7F0000000000  # the address of the first segment
MICROSECONDS = 1e6

Frames = list[dict[str, Any]]


def write(figures: Figures, path: str | os.PathLike[str]) -> None:
    """Write the snapshot of the planned step.  Raises OSError where the file cannot be written."""
    Path(path).write_bytes(pickle.dumps(snapshot(figures), protocol=PROTOCOL))


def snapshot(figures: Figures) -> dict[str, Any]:
    """The planned step as torch.cuda.memory._snapshot() would have recorded it."""
    device = torch.device(figures.device).index or 0
    trace = _Trace(figures)
    lives = lifetimes(figures.timeline, figures)
    freed = [(number, buffer) for number, buffer in enumerate(lives.buffers) if buffer.bytes < 0]
    left = figures.level
    for number, buffer in freed:  # it stands before the step, which frees it
        trace.allocate(number, -buffer.bytes, trace.about(buffer), 0)
        left += buffer.bytes
    for what, size in figures.stands:
        taken = max(0, min(size, left))
        left -= taken
        if taken:
            trace.allocate(what, taken, [_frame(what, "stands from the start to the end")], 0)
    for at, number, births in _order(lives, figures.timeline.timed):
        if births == (lives.buffers[number].bytes > 0):
            trace.allocate(number, lives.buffers[number].bytes, trace.about(lives.buffers[number]), at)
        else:
            trace.free(number, at)
    return {
        "segments": trace.segments(device),
        "device_traces": [[] if n != device else trace.entries for n in range(device + 1)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _order(lives: Lifetimes, timed: bool) -> Iterator[tuple[int, int, bool]]:
    """When buffers are born and die, one after another: microseconds, the number of the buffer, whether it is born.

    Where one takes the storage of another, the other dies first. Without times, a microsecond is one change.
    """
    happens = [(buffer.birth, 1, number) for number, buffer in enumerate(lives.buffers)]
    happens += [(life.death, 0, number) for number, life in enumerate(lives.buffers) if life.death is not None]
    times = lives.times
    for change, births, number in sorted(happens):
        yield round(times[change] * MICROSECONDS) if timed else change, number, bool(births)


class _Trace:
    """What is allocated and freed, entry by entry, and where."""

    def __init__(self, figures: Figures) -> None:
        self.entries: list[dict[str, Any]] = []
        self._allocator = CachingAllocator()
        self._starts: list[int] = []  # by segment, its address
        self._end = START
        self._live: dict[int | str, tuple[int, Frames]] = {}
        self._described = {item.name: item for item in figures.described}
        self._decided = {decision.name: decision for decision in figures.decisions}

    def allocate(self, name: int | str, size: int, frames: Frames, at: int) -> None:
        """Add an allocation, and before it that of the segment, where a new one is needed.  at: in microseconds."""
        self._allocator.allocate(name, size)
        for bytes_ in self._allocator.segments[len(self._starts) :]:
            self._starts.append(self._end)
            self._end += bytes_
            self._add("segment_alloc", self._starts[-1], bytes_, frames, at)
        self._live[name] = size, frames
        self._add("alloc", self._address(name), size, frames, at)

    def free(self, name: int | str, at: int) -> None:
        size, frames = self._live.pop(name)
        for action in ("free_requested", "free_completed"):
            self._add(action, self._address(name), size, frames, at)
        self._allocator.free(name)

    def segments(self, device: int) -> list[dict[str, Any]]:
        """What is there now: the segments, and their blocks without a gap."""
        blocks: list[list[dict[str, Any]]] = [[] for _ in self._allocator.segments]
        ends = [0 for _ in blocks]
        for (number, start, bytes_), name in sorted((self._allocator.place(name), name) for name in self._live):
            size, frames = self._live[name]
            if start > ends[number]:
                blocks[number].append(_free_block(self._starts[number] + ends[number], start - ends[number]))
            address = self._starts[number] + start
            facts = {"address": address, "size": bytes_, "requested_size": size, "frames": frames}
            blocks[number].append(facts | {"state": "active_allocated"})
            ends[number] = start + bytes_
        found = []
        for number, total in enumerate(self._allocator.segments):
            if ends[number] < total:
                blocks[number].append(_free_block(self._starts[number] + ends[number], total - ends[number]))
            active = [block for block in blocks[number] if block["state"] == "active_allocated"]
            taken = sum(block["size"] for block in active)
            found.append(
                {
                    "device": device,
                    "address": self._starts[number],
                    "total_size": total,
                    "allocated_size": taken,
                    "active_size": taken,
                    "requested_size": sum(block["requested_size"] for block in active),
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": blocks[number],
                }
            )
        return found

    def about(self, buffer: Buffer) -> Frames:
        """What is known of a buffer, in the shape of a stack: the innermost first."""
        known, decision = self._described.get(buffer.value), self._decided.get(buffer.value)
        what = buffer.value
        if known is not None:
            shape = f" {known.dtype}{list(known.shape)}" if known.dtype else ""
            what = f"{known.operator} {buffer.value}{shape}".lstrip()
        source = (known.source if known is not None else "") or (decision.source if decision is not None else "")
        module = (known.module if known is not None else "") or (decision.module if decision is not None else "")
        frames = [_frame(source or "memgraph", what), _frame("kind", buffer.stuff.value)]
        if module:
            frames.insert(1, _frame("module", module))
        if decision is not None:
            frames.append(_frame("decision", f"{decision.action}: {decision.why}"))
        return frames

    def _address(self, name: int | str) -> int:
        number, start, _ = self._allocator.place(name)
        return self._starts[number] + start

    def _add(self, action: str, address: int, size: int, frames: Frames, at: int) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": frames}
        self.entries.append(entry)


def _frame(place: str, name: str) -> dict[str, Any]:
    """A line of a stack.  place: "file:line", or a word."""
    file, _, line = place.rpartition(":")
    return {"filename": file, "line": int(line), "name": name} if line.isdecimal() and file else _word(place, name)


def _word(place: str, name: str) -> dict[str, Any]:
    return {"filename": place, "line": 0, "name": name}


def _free_block(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
