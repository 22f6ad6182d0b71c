"""Measure how fast a scratch folder is written and read, through the runtime's own input and output."""

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
            return staged
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
