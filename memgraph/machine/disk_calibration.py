"""Measure how fast a scratch folder is written and read, through the runtime's own input and output.

On the CPU also what copies take from the work beside them: products and passes over memory, alone and beside copies.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from memgraph.base.errors import OffloadError
from memgraph.machine.disk import Disk
from memgraph.runtime.gpudirect import Opener
from memgraph.runtime.nvme import NvmeTier, room
from memgraph.runtime.settings import Settings
from memgraph.runtime.streams import exact
from memgraph.runtime.value import OffloadedValue

_EACH = 32 << 20
_VALUES = 8
_SECONDS = 1.0  # to measure a direction for, about
# Beside work, values of about the size of a model's leave one after another, each with work for so many times as long
# as its copy takes, and at least so many seconds: so that all copies hide. Tiny ones leave in the same way, whose
# copies take next to nothing: what they take is what a value takes however small it is.
_SMALL = 4 << 20
_TINY = 64 << 10
_LONGER = 3
_LEAST = 3e-3
_ROUNDS = 31  # medians of 7 on a quiet machine lay between 0.41 and 0.94, of 31 between 0.46 and 0.64
_SIDE = 384  # of the matrices
_PASS = 4 << 20  # floats, more than caches hold
_SPREAD = 0.5  # between the quartiles of the rounds: of rounds that differ more nothing is believed


def calibrate_disk(folder: str | Path, device: torch.device | str = "cpu", gds: Opener | None = None) -> Disk:
    """Measure writing and reading in `folder` from and to `device`, in a few seconds; needs 256 MiB there.

    Values of a GPU are measured staged, and by GPUDirect where that works. `gds`: what opens files for GPUDirect.
    Raises OffloadError where the folder cannot be used. Other work on the disk meanwhile lowers the figures.
    """
    device = exact(device)
    tier = NvmeTier(str(folder), device, gds=gds)
    size = _VALUES * room(_EACH, device)
    reserved = tier.reserve(size, owner="a measurement of the disk")
    try:
        write, read = _rates(tier, Settings())
        staged = Disk(write, read, direct=bool(tier.direct))
        if gds is None and device.type == "cpu":
            drag, each = _taken(tier, staged) or (None, None)
            return dataclasses.replace(staged, drag=drag, each=each)
        if not tier.register():
            return dataclasses.replace(staged, refusal=tier.refusal)
        try:
            write, read = _rates(tier, Settings(gpudirect=True))
        except OffloadError as error:
            return dataclasses.replace(staged, refusal=error.reason)
        return dataclasses.replace(staged, gpudirect_write=write, gpudirect_read=read, refusal="")
    finally:
        tier.release(reserved)


def _rates(tier: NvmeTier, settings: Settings) -> tuple[float, float]:
    """Bytes/s of writing and reading values that are told `settings`."""
    source = torch.randint(0, 256, (_EACH,), dtype=torch.uint8, device=tier.device)
    held: list[OffloadedValue] = []

    def write() -> None:
        held.clear()
        copies = [tier.offload(f"calibrate {i}", source, settings) for i in range(_VALUES)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.finish()
            copy.value.written.wait()
            copy.value.check()
            held.append(copy.value)

    def read() -> None:
        copies = [tier.reload(value, tier.empty(value, value.layout)) for value in held]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.finish()

    write()  # blocks that were never written are slower
    return _rate(write, tier.device), _rate(read, tier.device)


def _rate(move: Callable[[], None], device: torch.device) -> float:
    """Bytes/s of `move`, which moves all values once: the median of up to five calls, in about `_SECONDS`."""
    seconds: list[float] = []
    while sum(seconds) < _SECONDS and len(seconds) < 5:
        start = time.perf_counter()
        move()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return _VALUES * _EACH / statistics.median(seconds)


def _taken(tier: NvmeTier, disk: Disk) -> tuple[float, float] | None:
    """What copies take from the work that runs beside them on all of torch's threads.

    Seconds for each second of copying, and seconds for each value that goes out and back, however small. None where
    the rounds differ too much to say: other work was on the machine.
    """
    work = _Work()
    small, tiny = (_Beside(tier, disk, work, min(size, _EACH)) for size in (_SMALL, _TINY))
    lost = [(small.lost(), tiny.lost()) for _ in range(_ROUNDS + 1)][1:]  # the first writes blocks never written
    low, middle, high = statistics.quantiles([of_small for of_small, _ in lost], n=4)
    if high - low > _SPREAD * small.copying:
        return None
    little = min(max(0.0, statistics.median(of_tiny for _, of_tiny in lost)), max(0.0, middle))
    drag = min(1.0, (max(0.0, middle) - little) / (small.copying - tiny.copying))
    return drag, max(0.0, little - drag * tiny.copying)


class _Beside:
    """Values of one size that leave and come back beside work."""

    def __init__(self, tier: NvmeTier, disk: Disk, work: _Work, size: int) -> None:
        self.tier, self.work = tier, work
        self.source = torch.randint(0, 256, (size,), dtype=torch.uint8)
        self.copying = size / disk.write + size / disk.read
        """Seconds that a value is copied, out and back."""
        self.times = max(1, round(max(_LONGER * self.copying / 2, _LEAST) / work.seconds))
        """How often the work runs beside each copy."""

    def lost(self) -> float:
        """Seconds that a value takes from the work, which runs alone and then beside the copies."""
        alone = self.work.run(2 * _VALUES * self.times)
        return (self._moved() - alone) / _VALUES

    def _moved(self) -> float:
        """Seconds of moving all values out and back, with the work beside each copy."""
        held: list[OffloadedValue] = []
        start = time.perf_counter()
        for i in range(_VALUES):
            out = self.tier.offload(f"calibrate {i}", self.source, Settings())
            out.start()
            self.work.run(self.times)
            out.finish()
            held.append(out.value)
        for value in held:
            back = self.tier.reload(value, self.tier.empty(value, value.layout))
            back.start()
            self.work.run(self.times)
            back.finish()
        return time.perf_counter() - start


class _Work:
    """What a step does, run any number of times: products, and a pass over memory that takes about as long.

    Copies hold up passes over memory about twice as much as products.
    """

    def __init__(self) -> None:
        self.left, self.right, self.out = (torch.randn(_SIDE, _SIDE) for _ in range(3))
        self.source, self.target = torch.zeros(_PASS), torch.zeros(_PASS)
        self.run(3)
        self.seconds = self.run(20) / 20

    def run(self, times: int) -> float:
        """Seconds of so many runs."""
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(self.left, self.right, out=self.out)
            torch.mm(self.left, self.right, out=self.out)
            torch.add(self.source, 1, out=self.target)
        return time.perf_counter() - start
