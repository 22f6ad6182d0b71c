"""Compute and copies touch the same bytes one after the other, by the log of the simulated device.

Each wait, mark and record of the runtime is taken out in turn: the log must then have a race.
"""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.runtime import host, nvme, staging, streams
from memgraph.runtime.process import scratch_file
from memgraph.runtime.slots import Slots
from memgraph.runtime.space import Calls
from tests.simulated.forked import on_the_device
from tests.support.happens_before import Touches, note, races
from tests.support.harness import Eager
from tests.support.offloading import bring, hold

pytestmark = pytest.mark.smoke
KIB = 1024


def log_of(run: str, without: str, folder) -> list[str]:
    function, *args = RUNS[run]
    on_the_device(function, *args, without, log=folder / "log")
    return (folder / "log").read_text().splitlines()


def copies(lines: list[str], way: str) -> int:
    return sum(line.startswith("copy ") and line.split()[2] == way for line in lines)


# What the functions below do runs in processes of their own.


def training(tier: str, without: str) -> None:
    """Three steps of a model whose saved values all leave."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.GELU()) for _ in range(4)]
    module = nn.Sequential(*layers).cuda()
    with tempfile.TemporaryDirectory() as folder:
        scratch_file(folder, "cuda", calls=Noted())
        offload = {tier: True if tier == "host" else folder, "min_bytes": 0}
        backend = Eager(tiers=Tiers((Tier(tier, 1e10, 1e10),)), offload=offload, rules={"*": f"offload:{tier}"})
        backend.around, backend.device = Touches, "cuda"
        step = torch.compile(lambda x: module(x).square().mean(), backend=backend)
        with torch.device("cuda"), taken_out(without), never_done():
            for _ in range(3):
                step(torch.zeros(256, 64)).backward()
        assert len(backend.planned[-1].plan.transfers) > 4


def two_streams(without: str) -> None:
    """A value leaves on one stream and returns on another, and its place on the host is taken by the next."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x, y = torch.zeros(2, 64 * KIB, device="cuda")
    torch.cuda.synchronize()
    with taken_out(without), never_done(), Touches():
        with torch.cuda.stream(first):
            held = hold(x, "host", json.dumps({}))
        with torch.cuda.stream(second):
            back = bring(held, x, "host")
        del held
        with torch.cuda.stream(first):
            held = hold(y, "host", json.dumps({}))
    del back, held


def given_up(without: str) -> None:
    """Copies that nobody waits for, out and back: the block is used again after the copy."""
    operators = torch.ops.memgraph
    x = torch.zeros(64 * KIB, device="cuda")
    held = hold(x, "host", json.dumps({}))
    like = (list(x.shape), list(x.stride()), x.dtype, x.device, "host")
    with taken_out(without), Touches():
        value = x + 1
        begun = operators.offload_start(value, "value", "host", json.dumps({}))
        del value, begun
        gc.collect()
        first = x + 2
        begun = operators.reload_start(held, *like)
        del begun
        gc.collect()
        second = x + 3
    del first, second


def _copy_without(lane: str, number: int):
    copy = streams.Lane.copy

    def less(self, target, source, *after):
        if self is getattr(streams.lanes(self.device), lane):
            after = tuple(event for n, event in enumerate(after) if n != number and not (number == 1 and n > 1))
        return copy(self, target, source, *after)

    return mock.patch.object(streams.Lane, "copy", less)


def _recorded_too_early():
    def copy(self, target, source, *after):
        with torch.cuda.stream(self.stream):
            event = self.stream.record_event()
            for other in after:
                if other is not None:
                    self.stream.wait_event(other)
            target.copy_(source, non_blocking=True)
            return event

    return mock.patch.object(streams.Lane, "copy", copy)


class Noted(Calls):
    """What is no part of the log by itself: the host stores a buffer in the file, and loads one from it."""

    def pwrite(self, file: int, data: memoryview, offset: int) -> int:
        note(f"host r {_address(data)} {len(data)} store")
        return super().pwrite(file, data, offset)

    def pread(self, file: int, data: memoryview, offset: int) -> int:
        note(f"host w {_address(data)} {len(data)} load")
        return super().pread(file, data, offset)


def _address(data: memoryview) -> str:
    return hex(torch.frombuffer(data, dtype=torch.uint8).data_ptr())


def never_done():
    """No copy is known to be done: then only events order what is used again."""

    def pending(self: Slots) -> list[Any]:
        self.settle()
        return list(self.events)

    return mock.patch.object(Slots, "pending", pending)


TAKEN_OUT = {
    "nothing": contextlib.nullcontext,
    "the marks": lambda: mock.patch.object(streams, "mark", lambda device: None),
    "the records": _recorded_too_early,
    "out: wait for the value": lambda: _copy_without("out", 0),
    "out: wait for what was in the slot": lambda: _copy_without("out", 1),
    "out: wait of the finish": lambda: mock.patch.object(host._Out, "wait", lambda self: None),
    "out: protection": lambda: mock.patch.object(host._Out, "abandon", lambda self: None),
    "back: wait for the memory": lambda: _copy_without("back", 0),
    "back: wait for the way out": lambda: _copy_without("back", 1),
    "back: wait of the finish": lambda: mock.patch.object(host._Back, "wait", lambda self: None),
    "back: protection": lambda: mock.patch.object(host._Back, "abandon", lambda self: None),
    "disk: marks": lambda: mock.patch.object(streams, "mark", lambda device: None),
    "disk: wait of the finish": lambda: mock.patch.object(nvme._Blocks, "wait", lambda self: self.handed.wait()),
    "disk: wait before the store": lambda: mock.patch.object(streams, "join", lambda event: None),
    "disk: wait for the buffer": lambda: mock.patch.object(staging.Buffer, "wait", lambda self: None),
}
# By what is taken out, the run that misses it.
SEEN = {what: "disk" if what.startswith("disk") else "host" for what in TAKEN_OUT if what != "nothing"}
SEEN |= dict.fromkeys(("out: protection", "back: protection"), "given up")
# A compute stream waits for its own copies anyway.
SEEN |= dict.fromkeys(("out: wait for what was in the slot", "back: wait for the way out"), "streams")


def taken_out(what: str):
    return TAKEN_OUT[what]()


RUNS = {
    "host": (training, "host"),
    "disk": (training, "nvme"),
    "given up": (given_up,),
    "streams": (two_streams,),
}


@pytest.mark.parametrize("run", RUNS)
def test_nothing_touches_the_same_bytes_at_once(run, tmp_path):
    lines = log_of(run, "nothing", tmp_path)
    assert copies(lines, "d2h") and copies(lines, "h2d")
    if RUNS[run][0] is training:
        assert copies(lines, "d2h") > 30 and copies(lines, "h2d") > 30
    assert not [str(race) for race in races(lines)]


@pytest.mark.parametrize(("run", "what"), [(run, what) for what, run in SEEN.items()])
def test_what_is_taken_out_is_missed(run, what, tmp_path):
    assert races(log_of(run, what, tmp_path))
