"""How fast a scratch folder is written and read: measured through the runtime's own I/O, kept for its disk.

Planning reads these figures and never measures, as with those of a device (hardware.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from memgraph.base.errors import OffloadError
from memgraph.base.folder import cache_folder, keep
from memgraph.runtime.gpudirect import Opener
from memgraph.runtime.nvme import NvmeTier, room
from memgraph.runtime.streams import exact
from memgraph.runtime.value import Settings, Value

_EACH = 32 << 20
_VALUES = 8
_SECONDS = 1.0  # to measure a direction for, about
# GPUDirect has to win by this much: torch (2.11 to 2.13) holds the interpreter's lock while it moves a block, which the
# thread that launches kernels feels and a bandwidth does not show.
_MARGIN = 0.1


@dataclasses.dataclass(frozen=True)
class Disk:
    """The figures of the disk under a scratch folder.

    Attributes:
        write, read: bytes/s, of values on a GPU through page-locked memory. direct: whether the page cache is passed
        by. measured: False for built-in figures. gpudirect_write, gpudirect_read: bytes/s by GPUDirect, 0 where they
        were not measured; refusal: why.
    """

    write: float
    read: float
    direct: bool = True
    measured: bool = True
    gpudirect_write: float = 0.0
    gpudirect_read: float = 0.0
    refusal: str = "it was not measured here; `memgraph calibrate --scratch FOLDER` does"

    @property
    def knows_gpudirect(self) -> bool:
        """Whether GPUDirect was measured."""
        return bool(self.gpudirect_write and self.gpudirect_read)

    @property
    def against_gpudirect(self) -> str:
        """Why these figures speak against GPUDirect; empty where it is there and faster.

        A value is written once and read once, so what counts is the time of both.
        """
        if not self.knows_gpudirect:
            return self.refusal or Disk.refusal
        staged, direct = (sum(1 / rate for rate in self.rates(way)) for way in (False, True))
        if direct <= staged * (1 - _MARGIN):
            return ""
        return f"it was measured and is not faster ({speed(self.rates(True))}; staged {speed(self.rates(False))})"

    def rates(self, gpudirect: bool) -> tuple[float, float]:
        """Bytes/s of writing and reading, by GPUDirect where that is asked for and was measured."""
        if gpudirect and self.knows_gpudirect:
            return self.gpudirect_write, self.gpudirect_read
        return self.write, self.read

    def to_json(self) -> str:
        """Return the figures as a JSON object, to be read by `from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Disk:
        """Return the figures that `to_json` wrote. Raises ValueError where `text` is anything else."""
        try:
            disk = cls(**json.loads(text))
            infinity = float("inf")
            staged = all(0 < rate < infinity for rate in (disk.write, disk.read))
            if staged and all(0 <= rate < infinity for rate in (disk.gpudirect_write, disk.gpudirect_read)):
                return disk
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the figures of a disk: {error}") from error
        raise ValueError("not the figures of a disk: each must be positive")


def speed(rates: tuple[float, float]) -> str:
    """Both rates, to read."""
    return f"{rates[0] / 1e9:.2f} GB/s out, {rates[1] / 1e9:.2f} back"


BUILT_IN = Disk(write=1e9, read=1.5e9, measured=False)  # a slow NVMe disk


def load(folder: str | Path) -> Disk:
    """Return the figures kept for the disk under `folder`, else the built-in ones. Measures nothing."""
    try:
        return Disk.from_json(_file(folder).read_text())
    except (OSError, ValueError):  # the cache is never a reason to fail
        return BUILT_IN


def save(folder: str | Path, disk: Disk) -> Path:
    """Keep `disk` for the disk under `folder`, and return the file. Raises OSError where it cannot."""
    return keep(_file(folder), disk.to_json())


def calibrate(folder: str | Path, device: torch.device | str = "cpu", gds: Opener | None = None) -> Disk:
    """Measure writing and reading in `folder` from and to `device`, in a few seconds; needs 256 MiB there.

    Values of a GPU go both ways, staged and by GPUDirect where that can be had. `gds`: what opens files for it.
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
    held: list[Value] = []

    def write() -> None:
        held.clear()
        transfers = [tier.offload(f"calibrate {i}", source, settings) for i in range(_VALUES)]
        for transfer in transfers:
            transfer.start()
        for transfer in transfers:
            transfer.finish()
            transfer.value.written.wait()
            transfer.value.check()
            held.append(transfer.value)

    def read() -> None:
        transfers = [tier.reload(value, tier.empty(value, value.layout)) for value in held]
        for transfer in transfers:
            transfer.start()
        for transfer in transfers:
            transfer.finish()

    write()  # blocks that were never written are slower
    return _rate(write, tier.device), _rate(read, tier.device)


def _rate(move: Callable[[], None], device: torch.device) -> float:
    seconds: list[float] = []
    while sum(seconds) < _SECONDS and len(seconds) < 5:
        start = time.perf_counter()
        move()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return _VALUES * _EACH / statistics.median(seconds)


def _file(folder: str | Path) -> Path:
    disk = os.stat(folder).st_dev
    return cache_folder() / f"disk-{os.major(disk)}-{os.minor(disk)}.json"
