"""How fast a scratch folder is written and read: measured through the runtime's own I/O, kept for its disk.

Planning reads these figures and never measures, as with those of a device (hardware.py).
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from memgraph.cache import cache_folder, keep
from memgraph.runtime.nvme import NvmeTier, room
from memgraph.runtime.streams import exact
from memgraph.runtime.value import Settings, Value

_EACH = 32 << 20
_VALUES = 8
_SECONDS = 1.0  # to measure a direction for, about


@dataclass(frozen=True)
class Disk:
    """The figures of the disk under a scratch folder.

    Attributes:
        write, read: bytes/s. direct: whether the page cache is passed by. measured: False for built-in figures.
    """

    write: float
    read: float
    direct: bool = True
    measured: bool = True

    def to_json(self) -> str:
        """Return the figures as a JSON object, to be read by `from_json`."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Disk:
        """Return the figures that `to_json` wrote. Raises ValueError where `text` is anything else."""
        try:
            disk = cls(**json.loads(text))
            if all(0 < rate < float("inf") for rate in (disk.write, disk.read)):
                return disk
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the figures of a disk: {error}") from error
        raise ValueError("not the figures of a disk: each must be positive")


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


def calibrate(folder: str | Path, device: torch.device | str = "cpu") -> Disk:
    """Measure writing and reading in `folder` from and to `device`, in a few seconds; needs 256 MiB there.

    Raises OffloadError where the folder cannot be used. Other work on the disk meanwhile lowers the figures.
    """
    device = exact(device)
    tier = NvmeTier(str(folder), device)
    tier.reserve(_VALUES * room(_EACH, device))
    held: list[Value] = []
    try:
        source = torch.randint(0, 256, (_EACH,), dtype=torch.uint8, device=device)

        def write() -> None:
            held.clear()
            transfers = [tier.offload(f"calibrate {i}", source, Settings()) for i in range(_VALUES)]
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
        rates = _rate(write, device), _rate(read, device)
        return Disk(*rates, direct=bool(tier.direct))
    finally:
        held.clear()
        tier.release(_VALUES * room(_EACH, device))


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
