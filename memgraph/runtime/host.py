"""The host tier: a pool of plain memory, page-locked for CUDA, allocated once and used again in every step."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from typing import Any

import torch

from memgraph.base.errors import OffloadError
from memgraph.base.sizes import format_size
from memgraph.runtime import sanitizer, streams
from memgraph.runtime.layout import Layout
from memgraph.runtime.pending_copy import PendingCopy
from memgraph.runtime.reservations import Reservations, listed
from memgraph.runtime.settings import Settings
from memgraph.runtime.slots import Slot, Slots, pages
from memgraph.runtime.value import OffloadedValue

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device of the process


class Memory:
    """The system calls of a pool. Tests pass an object whose calls fail."""

    def map(self, size: int) -> mmap.mmap:
        """`size` bytes of anonymous, page-aligned memory. Raises OSError."""
        return mmap.mmap(-1, size)

    def register(self, address: int, size: int) -> int:
        """Page-lock memory for CUDA. Returns 0, or the number of CUDA's error."""
        return int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))

    def unregister(self, address: int) -> None:
        torch.cuda.cudart().cudaHostUnregister(address)


_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def own_memory() -> frozenset[int]:
    """The addresses of the host memory that the tiers of this process have taken, which no budget counts."""
    return frozenset(segment.address for segment in list(_segments))


class Segment:
    """One range of memory, page-locked where `device` is CUDA. Raises OffloadError where the system refuses it.

    `tensor` (uint8) and `view` have all of its bytes.
    """

    def __init__(self, size: int, device: torch.device, memory: Memory, what: str = "host memory"):
        self.size, self._memory = size, memory
        try:
            self._mmap = memory.map(size)
        except OSError as refused:
            raise OffloadError(
                f"{what}: {format_size(size)} ({size} bytes) refused: {refused}", tier="host"
            ) from refused
        self.tensor = torch.frombuffer(self._mmap, dtype=torch.uint8)
        self.view = memoryview(self._mmap)
        self.address = self.tensor.data_ptr()
        _segments.add(self)
        self._registered = device.type == "cuda"
        if self._registered and (error := memory.register(self.address, size)):
            self._registered = False
            _forget_error(device)
            raise OffloadError(
                f"{what}: CUDA refused to page-lock {format_size(size)} ({size} bytes): error {error}", tier="host"
            )

    def release(self) -> None:
        """Release the page lock. The memory itself is freed with the last view of it."""
        if self._registered:
            self._registered = False
            self._memory.unregister(self.address)


def _forget_error(device: torch.device) -> None:
    """Clear CUDA's last error, which would otherwise be reported for the next kernel."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError:
        return


class HostPool:
    """The host memory for the values of one device."""

    def __init__(self, device: torch.device, memory: Memory | None = None):
        self.device = device
        self._memory = memory or Memory()
        self._segments: list[Segment] = []
        self.reservations = Reservations()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.slots = Slots(self._vacated)

    def reserve(self, size: int, cap: int | None = None, owner: str = "") -> int:
        """Reserve `size` bytes beside all earlier reservations, before the first step.

        cap: the most bytes of the pool.  owner: for messages.  Returns the number that `release` takes.
        Raises OffloadError.
        """
        with self._lock:
            self.reservations.settle()
            wanted = self.reservations.total + pages(size)
            if wanted > self.slots.total:
                self._grow(wanted - self.slots.total, cap)
            return self.reservations.add(owner, pages(size))

    def release(self, number: int) -> None:
        """End a reservation. Free memory that the others do not need goes back to the system."""
        self.reservations.leave(number)
        self.trim()

    def trim(self) -> None:
        """Return free memory that no reservation needs to the system."""
        with self._lock:
            self.reservations.settle()
            self._trim()

    def settle(self) -> None:
        """Account for reservations that ended and for slots that came back; after the first, return free memory."""
        with self._lock:
            if self.reservations.settle():
                self._trim()
        self.slots.settle()

    def reserved(self) -> tuple[tuple[str, int], ...]:
        """Who has reserved how many bytes, the largest first."""
        with self._lock:
            self.reservations.settle()
            return self.reservations.holders()

    def offload(self, name: str, tensor: torch.Tensor, settings: Settings) -> PendingCopy:
        """A copy of `tensor` to a slot of the pool, not yet begun. Raises OffloadError where there is no room."""
        layout = Layout.of(tensor)
        try:
            slot = self._take(layout.nbytes, settings.cap)
        except OffloadError as error:
            raise OffloadError(error.reason, value=name, tier="host") from error
        stored = self.bytes(slot, layout.nbytes)
        value = OffloadedValue(name, "host", "", layout, slot, stored=stored, verify=settings.verify, blocks=0)
        return _Out(value, tensor, stored, self)

    def empty(self, value: OffloadedValue, layout: Layout) -> torch.Tensor:
        """An uninitialised tensor on the device, for a value that comes back."""
        return layout.empty()

    def reload(self, value: OffloadedValue, tensor: torch.Tensor) -> PendingCopy:
        """A copy of a value back to `tensor`, not yet begun. Raises OffloadError in a forked child."""
        if self._process != os.getpid():  # the parent may have given the bytes to another value by now
            raise value.error("it was offloaded by another process, which has forked this one: values stay there")
        assert value.stored is not None  # `offload` has said where
        return _Back(value, tensor, value.stored, self)

    def bytes(self, slot: Slot, size: int) -> torch.Tensor:
        """The first `size` bytes of a slot, without a copy."""
        segment = next(s for s in self._segments if s.address <= slot.start < s.address + s.size)
        offset = slot.start - segment.address
        return segment.tensor[offset : offset + size]

    def _take(self, size: int, cap: int | None) -> Slot:
        slot = self.slots.take(size)
        if slot is None:
            with self._lock:
                slot = self.slots.take(size)  # another thread may have grown the pool
                if slot is None:
                    self.reservations.settle()
                    self._trim(below=pages(size))
                    slot = self._grow(pages(size), cap, take=size)
                    assert slot is not None  # `take` asks for one
        return slot

    def _grow(self, size: int, cap: int | None, take: int = 0) -> Slot | None:
        """Add a segment of `size` bytes to the pool. With `take`, return a slot of so many of them.

        Raises OffloadError beyond `cap`, and where the system refuses the memory.
        """
        if cap is not None and self.slots.total + size > cap:
            held = listed(self.reservations.holders())
            raise OffloadError(
                f"the host pool holds {self.slots.total} bytes and needs {size} more; its cap is {cap}"
                + f" (reserved: {held})" * bool(held),
                tier="host",
            )
        segment = Segment(size, self.device, self._memory, "host pool")
        self._segments = [*self._segments, segment]
        # Other threads take slots without the pool's lock, so the new range and its slot appear in one step.
        return self.slots.add(segment.address, size, take=take)

    def _trim(self, below: int | None = None) -> None:
        """Return free segments that no reservation needs to the system, the largest first.

        below: only segments smaller than this many bytes, to make room for a larger one.
        """
        reserved = self.reservations.total
        for segment in sorted(self._segments, key=lambda segment: -segment.size):
            if self.slots.total - segment.size >= reserved and (below is None or segment.size < below):
                self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        if self.slots.remove(segment.address, segment.size):
            for event in self.slots.pending():
                event.synchronize()  # a copy may still use the page-locked memory
            segment.release()
            self._segments = [other for other in self._segments if other is not segment]

    def _vacated(self, start: int, size: int) -> None:
        if sanitizer.active():
            for event in self.slots.events:
                event.synchronize()
            ctypes.memset(start, sanitizer.POISON, size)


class _Copy(PendingCopy):
    event: Any = None

    def __init__(self, value: OffloadedValue, tensor: torch.Tensor, stored: torch.Tensor, pool: HostPool):
        super().__init__(value, tensor)
        self.stored, self.pool = stored, pool

    def wait(self) -> None:
        streams.wait(self.device, self.event)


class _Out(_Copy):
    def launch(self) -> None:
        earlier = self.pool.slots.pending()
        self.event = self.value.slot.event = self.lanes.out.copy(self.stored, self.memory, self.ready, *earlier)

    def wait(self) -> None:
        super().wait()
        if self.value.verify:
            if self.event is not None:
                self.event.synchronize()  # the checksum is the host's work
            self.value.note(0, self.stored.numpy().data)

    def abandon(self) -> None:
        self.lanes.out.protect(self.memory)


class _Back(_Copy):
    def launch(self) -> None:
        if self.value.verify:
            self.value.compare(0, self.stored.numpy().data)
            self.value.check()
        out = self.value.slot.event  # the copy that brought the bytes here
        self.event = self.value.slot.event = self.lanes.back.copy(self.memory, self.stored, self.ready, out)

    def abandon(self) -> None:
        self.lanes.back.protect(self.memory)
