"""How fast a scratch folder is written and read: measured through the runtime's own I/O, kept for its disk.

Planning reads these figures and never measures, as with those of a device (hardware.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from memgraph.base.folder import cache_folder, write_atomically

# GPUDirect has to win by this much: torch (2.11 to 2.13) holds the interpreter's lock while it moves a block, which the
# thread that launches kernels feels and a bandwidth does not show.
_MARGIN = 0.1


# What copies take from a CPU's work beside them, where nobody has measured it: a share of their time, and seconds for
# each value that goes out and back (docs/decisions/0015-bounds.md, "What copies take from a CPU").
BUILT_IN_DRAG = 0.4
BUILT_IN_EACH = 1e-3


@dataclasses.dataclass(frozen=True)
class Disk:
    """The figures of the disk under a scratch folder."""

    write: float
    """Bytes/s from the device to the disk; from a GPU staged in page-locked memory."""

    read: float
    """Bytes/s back, the same way."""

    direct: bool = True
    """Whether reads and writes bypass the page cache."""

    measured: bool = True
    """False for built-in figures."""

    gpudirect_write: float = 0.0
    """Bytes/s out by GPUDirect; 0 where it was not measured."""

    gpudirect_read: float = 0.0
    """Bytes/s back by GPUDirect; 0 where it was not measured."""

    refusal: str = "it was not measured here; `memgraph calibrate --scratch FOLDER` does"
    """Why GPUDirect was not measured."""

    drag: float | None = None
    """Seconds that a second of copying takes from a CPU that computes beside it, 0 to 1; None where it was not
    measured. A GPU is not held up: it has engines for copies."""

    each: float | None = None
    """Seconds that such a CPU loses for each value that goes out and back, however small; None where `drag` is, and in
    figures that were kept when `drag` was all that was measured, and had these seconds in it."""

    @property
    def taken(self) -> tuple[float, float]:
        """`drag` and `each`, or the built-in figures."""
        return (BUILT_IN_DRAG, BUILT_IN_EACH) if self.drag is None else (self.drag, self.each or 0.0)

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
            direct = all(0 <= rate < infinity for rate in (disk.gpudirect_write, disk.gpudirect_read))
            drag, each = disk.taken
            if staged and direct and 0 <= drag <= 1 and 0 <= each < infinity:
                return disk
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the figures of a disk: {error}") from error
        raise ValueError("not the figures of a disk: each must be positive")


def speed(rates: tuple[float, float]) -> str:
    """Rates of writing and reading as text."""
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
    return write_atomically(_file(folder), disk.to_json())


def _file(folder: str | Path) -> Path:
    disk = os.stat(folder).st_dev
    return cache_folder() / f"disk-{os.major(disk)}-{os.minor(disk)}.json"
