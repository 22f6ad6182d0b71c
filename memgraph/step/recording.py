"""What one round allocates, launch by launch, and between them what others do.

    forward begins | forward ends | forward begins | ... | backward begins | backward ends | ...
    level, and the peak since the mark before

On CUDA the allocator's counters are read at each mark; a peak below one that was reached before is not seen. On the
CPU, where there are none, torch's older profiler lists the allocations of the thread, and a mark is an allocation of a
size of its own among them. Few rounds of a run are recorded, and no other one pays for it.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
from typing import Any

import torch

from memgraph.base import compat
from memgraph.machine.measure import allocated_bytes

_MARK = 99_991  # bytes: a prime, which no tensor of a model has


class Moment(enum.Enum):
    """What happens at a mark."""

    FORWARD = "forward begins"
    RETURN = "forward ends"
    BACKWARD = "backward begins"
    END = "backward ends"


@dataclasses.dataclass(frozen=True)
class Mark:
    """A moment of one launch."""

    launch: Any
    moment: Moment
    level: int
    """Bytes allocated."""
    peak: int
    """The most bytes allocated since the mark before."""


class CpuRecorder:
    """Records the thread that makes it, until `stop`. A profiler of torch must not run."""

    def __init__(self, level: int) -> None:
        """level: bytes allocated now."""
        self.thread = threading.current_thread()
        self._level, self._marks = level, list[tuple[Any, Moment]]()
        compat.start_allocations()

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""
        if threading.current_thread() is self.thread:
            self._marks.append((launch, moment))
            torch.empty(_MARK, dtype=torch.uint8, device="cpu")

    def stop(self) -> list[Mark]:
        """The marks of the recording, which ends here."""
        found: list[Mark] = []
        level = peak = self._level
        for change in compat.stop_allocations():
            if change == _MARK and len(found) < len(self._marks):
                found.append(Mark(*self._marks[len(found)], level, peak))
                peak = level
            elif change != -_MARK:
                level += change
                peak = max(peak, level)
        return found


class CudaRecorder:
    """Reads the counters of a CUDA device at each mark."""

    def __init__(self, device: torch.device) -> None:
        self.thread = threading.current_thread()
        self._device, self._found = device, list[Mark]()
        self._highest = torch.cuda.max_memory_allocated(device)

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""
        level, highest = allocated_bytes(self._device), torch.cuda.max_memory_allocated(self._device)
        peak = highest if highest > self._highest else level
        self._highest = max(highest, self._highest)
        self._found.append(Mark(launch, moment, level, peak))

    def stop(self) -> list[Mark]:
        """The marks of the recording, which ends here."""
        return self._found


def recorder(device: torch.device, level: int) -> CpuRecorder | CudaRecorder | None:
    """A recorder that has begun; None where the CPU cannot be recorded now.  level: bytes allocated on the device."""
    if device.type == "cuda":
        return CudaRecorder(device)
    # The end of a recording must come on the same thread: only the main thread is sure to come again.
    if compat.profiling() or threading.current_thread() is not threading.main_thread():
        return None
    return CpuRecorder(level)
