"""Measure how fast a scratch folder is written and read, through the runtime's own input and output.

On the CPU also what copies take from the work beside them: matrix products run alone and beside copies, in turn.
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
# Beside products, values of about the size of a model's leave one after another, each with products for so many times
# as long as its copy takes: so that all copies hide.
_SMALL = 4 << 20
_LONGER = 3
_ROUNDS = 31  # medians of 7 on a quiet machine lay between 0.41 and 0.94, of 31 between 0.46 and 0.64
_SIDE = 384  # of the matrices
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
            return dataclasses.replace(staged, drag=_drag(tier, staged))
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


def _drag(tier: NvmeTier, disk: Disk) -> float | None:
    """Seconds that a second of copying takes from products that run beside it on all of torch's threads.

    None where the rounds differ too much to say: other work was on the machine.
    """
    product, source = _Product(), torch.randint(0, 256, (min(_SMALL, _EACH),), dtype=torch.uint8)
    copying = source.nbytes / disk.write + source.nbytes / disk.read
    products = max(1, round(_LONGER * copying / 2 / product.seconds))
    lost: list[float] = []
    for number in range(_ROUNDS + 1):
        alone = product.run(2 * _VALUES * products)
        beside = _beside(tier, source, lambda: product.run(products))
        if number:  # the first writes blocks that were never written
            lost.append((beside - alone) / (_VALUES * copying))
    low, middle, high = statistics.quantiles(lost, n=4)
    return None if high - low > _SPREAD else min(1.0, max(0.0, middle))


def _beside(tier: NvmeTier, source: torch.Tensor, work: Callable[[], float]) -> float:
    """Seconds of moving all values out and back, with `work` beside each copy."""
    held: list[OffloadedValue] = []
    start = time.perf_counter()
    for i in range(_VALUES):
        out = tier.offload(f"calibrate {i}", source, Settings())
        out.start()
        work()
        out.finish()
        held.append(out.value)
    for value in held:
        back = tier.reload(value, tier.empty(value, value.layout))
        back.start()
        work()
        back.finish()
    return time.perf_counter() - start


class _Product:
    """A matrix product, run any number of times."""

    def __init__(self) -> None:
        self.left, self.right, self.out = (torch.randn(_SIDE, _SIDE) for _ in range(3))
        self.run(3)
        self.seconds = self.run(20) / 20

    def run(self, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(self.left, self.right, out=self.out)
        return time.perf_counter() - start
