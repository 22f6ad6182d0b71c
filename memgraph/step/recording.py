"""What one round allocates, launch by launch, and between them what others do.

    forward begins | forward ends | forward begins | ... | backward begins | backward ends | ...
    level, and the peak since the mark before

On CUDA the allocator's counters are read at each mark; a peak below one that was reached before is not seen. On the
CPU, where there are none, torch's older profiler lists the allocations of the thread, and a mark is an allocation of a
size of its own among them; it pauses while a graph is compiled. It runs through a round of several graphs, and within
the launches alone of a graph that ends its rounds: between those a profiler of the user's may start. Few rounds of a
run are recorded, and no other one pays for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Protocol

import torch

from memgraph.base import compat
from memgraph.machine import caching_allocator, measure
from memgraph.machine.measure import counters

_MARK = 99_991  # bytes: a prime, which no tensor of a model has
_SMALL = 1024  # bytes: smaller storages are not watched


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
    seen: bool = True
    """Whether the peak is known; else it is taken for the level."""
    since: tuple[Any, Moment] | None = None
    """The launch and the moment of the mark before; None for the first one."""
    to_rise: int = 0
    """Bytes by which the level may be higher in other rounds, since blocks count as more there."""


class Recorder(Protocol):
    """Records the launches of one round."""

    thread: threading.Thread
    """What made it."""
    within: bool
    """Whether it begins in a backward, and so has to end there: autograd gives each node the state of its thread."""

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""

    def pause(self) -> None:
        """Let the thread compile: what it allocates until `resume` is no part of the round."""

    def resume(self) -> None:
        """Go on after a pause, from what is allocated now."""

    def stop(self) -> None:
        """End the recording: its launches have their marks then."""


class CpuRecorder:
    """Records the thread that makes it, until `stop`. A profiler of torch must not run."""

    within = False

    def __init__(self, level: int, live: Callable[[], Iterable[torch.Tensor]] = measure.live_tensors) -> None:
        """level: bytes allocated now.  live: finds the live tensors, whose storages are watched."""
        self.thread = threading.current_thread()
        self._live = live
        self._level = self._peak = level
        self._since: tuple[Any, Moment] | None = None
        self._marks: list[tuple[Any, Moment, int]] = []
        self._alive: Counter[int] = Counter()
        self._before = _storages(self._live())
        self._in_pause: Storages = {}
        compat.start_allocations()

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""
        if threading.current_thread() is self.thread:
            self._marks.append((launch, moment, self._given_back()))
            torch.empty(_MARK, dtype=torch.uint8, device="cpu")

    def pause(self) -> None:
        """Let the thread compile: a profiler would forbid that kernels are tried."""
        self.stop()
        self._in_pause = _storages(self._live())

    def resume(self) -> None:
        """Go on after a pause: only what it has freed or left counts, as far as Python can reach that."""
        for key, (reference, size) in self._in_pause.items():
            if _freed(reference, size) and key not in self._before:  # what is in there `_given_back` tells
                self._level -= size
                self._alive[size] -= 1
        for key, (reference, size) in _storages(self._live()).items():
            if key not in self._in_pause or self._in_pause[key][0]() is not reference():
                self._before[key] = reference, size
                self._level += size
        self._in_pause = {}
        self._peak = max(self._peak, self._level)
        compat.start_allocations()

    def stop(self) -> None:
        """End the recording: its launches have their marks then."""
        marks, self._marks = iter(self._marks), []
        for change in compat.stop_allocations():
            if change == _MARK and (now := next(marks, None)) is not None:
                launch, moment, given_back = now
                self._level -= given_back
                _note(Mark(launch, moment, self._level, self._peak, since=self._since))
                self._since, self._peak = (launch, moment), self._level
            elif change != -_MARK and _is_own(change, self._alive):
                self._level += change
                self._peak = max(self._peak, self._level)

    def _given_back(self) -> int:
        """Bytes of the watched storages that have gone, or have been emptied, since the mark before.

        Listed frees do not tell of what was allocated before the recording began, such as the parameters that FSDP2
        gathered for the first launch. The object of a storage lives for as long as its memory, whoever holds that.
        """
        freed = 0
        for key, (reference, size) in list(self._before.items()):
            if _freed(reference, size):
                del self._before[key]
                freed += size
        return freed


def _freed(reference: weakref.ref[torch.UntypedStorage], size: int) -> bool:
    """Whether a storage has gone, or has been emptied."""
    storage = reference()
    return storage is None or storage.nbytes() < size


def _is_own(change: int, alive: Counter[int]) -> bool:
    """Whether an allocation (positive) or a free (negative) is one of a block that the recording saw made.

    The profiler takes the size of a block that it frees from the last recording that saw an allocation at the same
    address. Of a block that no recording saw made, that is the size of another one, which has gone long since.
    alive: by size, how many blocks of the recording live; it is brought up to date.
    """
    if change < 0 and not alive[-change]:
        return False
    alive[abs(change)] += 1 if change > 0 else -1
    return True


Storages = dict[int, tuple[weakref.ref[torch.UntypedStorage], int]]
"""By address, storages and their bytes."""


def _storages(tensors: Iterable[torch.Tensor]) -> Storages:
    """The storages of `tensors` on the CPU."""
    found = {}
    for tensor in tensors:
        with contextlib.suppress(Exception):  # tensors that have no storage
            storage = tensor.untyped_storage()
            if storage.device.type == "cpu" and storage.nbytes() >= _SMALL:
                found[storage.data_ptr()] = weakref.ref(storage), storage.nbytes()
    return found


class LaunchRecorder:
    """Records what the launches of the thread that makes it allocate, and nothing between them.

    A forward begins at the level of its entry, a backward at what the launches have left since.
    """

    within = True

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self._level = 0
        self._before: tuple[Any, Moment] | None = None
        self._alive: Counter[int] = Counter()
        self._running = False

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""
        if threading.current_thread() is not self.thread:
            return
        if moment in (Moment.FORWARD, Moment.BACKWARD):
            self._begins(launch, moment)
        elif self._running and self._before is not None and self._before[0] is launch:
            changes = [change for change in compat.stop_allocations() if _is_own(change, self._alive)]
            self._running = False
            peak = self._level + max(accumulate(changes, initial=0))
            self._level += sum(changes)
            self._note(Mark(launch, moment, self._level, peak, since=self._before))

    def pause(self) -> None:
        """Between launches, where graphs are compiled, nothing is recorded."""

    resume = pause

    def _begins(self, launch: Any, moment: Moment) -> None:
        if self._running or compat.profiling():
            return
        forward = moment is Moment.FORWARD
        self._level = launch.entry.level if forward else self._level - launch.dropped + launch.given
        self._note(Mark(launch, moment, self._level, self._level, seen=False, since=self._before))
        self._running = True
        compat.start_allocations()

    def _note(self, mark: Mark) -> None:
        _note(mark)
        self._before = mark.launch, mark.moment

    def stop(self) -> None:
        """End the recording: its launches have their marks then."""
        # Of a backward that has failed autograd has ended the recording, with all that it sets for a thread.
        if self._running and self._before is not None and self._before[1] is Moment.FORWARD:
            compat.stop_allocations()
        self._running = False


class CudaRecorder:
    """Reads the counters of a CUDA device at each mark."""

    within = False

    def __init__(self, device: torch.device) -> None:
        self.thread = threading.current_thread()
        self._device = device
        self._before: tuple[Any, Moment] | None = None
        self._highest = counters(device).highest
        self._reached = 0  # between the last mark and a pause, where that was seen
        self._uncut: int | None = None  # at the first mark

    def mark(self, launch: Any, moment: Moment) -> None:
        """Note that a moment of a launch has come."""
        now = counters(self._device)
        # Lower than it was: the user has reset it since the mark before.
        peak = max(self._reached, now.highest if now.highest != self._highest else 0)
        self._highest, self._reached = now.highest, 0
        if self._uncut is None:
            self._uncut = now.uncut
        to_rise = caching_allocator.may_rise(self._device.type, now.uncut - self._uncut)
        _note(Mark(launch, moment, now.allocated, peak or now.allocated, peak > 0, self._before, to_rise))
        self._before = launch, moment

    def pause(self) -> None:
        """Let the thread compile: what it allocates until `resume`, as where kernels are tried, counts for nothing."""
        highest = counters(self._device).highest
        if highest != self._highest:
            self._reached = max(self._reached, highest)

    def resume(self) -> None:
        """Go on after a pause: the highest level so far may be one that the compilation has reached."""
        self._highest = counters(self._device).highest

    def stop(self) -> None:
        """End the recording: its launches have their marks then."""


def _note(mark: Mark) -> None:
    """Tell a launch. With a graph that is kept for a second backward, the first one counts."""
    mark.launch.marks.setdefault(mark.moment, mark)


def recorder(device: torch.device, level: int, *, within: bool) -> Recorder | None:
    """A recorder that has begun; None where the CPU cannot be recorded now.

    level: bytes allocated on the device.  within: what runs between the launches is not asked for.
    """
    if device.type == "cuda":
        return CudaRecorder(device)
    if compat.profiling():
        return None
    if within:
        return LaunchRecorder()
    # The end of a recording must come on the same thread: only the main thread is sure to come again.
    if threading.current_thread() is not threading.main_thread():
        return None
    return CpuRecorder(level)
