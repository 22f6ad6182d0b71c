"""The NVMe tier: values in a scratch file, moved in large blocks by a few threads.

    cuda   out:   device --copy--> staging buffer --pwrite--> file      offload_finish waits for the copies
           back:  file --pread--> staging buffer --copy--> device       reload_finish waits for the copies
           with GPUDirect, device <--> file: only what a value has beyond its last whole page is staged
    cpu    the pages that a value lies in are written and read where they are. Through staging buffers, too, 4.0 to 4.4
           GB/s were written and 0.9 to 1.4 read where this writes 4.2 to 5.3 and reads 1.1 to 1.6 (two shared cores)

A read of a value waits for its writes. A failed block makes the value lost: who asks for it next gets the error.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime import sanitizer, streams
from memgraph.runtime.layout import Layout
from memgraph.runtime.nvme_file import ScratchFile
from memgraph.runtime.pending_copy import PendingCopy
from memgraph.runtime.settings import Settings
from memgraph.runtime.slots import PAGE, pages
from memgraph.runtime.value import Latch, OffloadedValue

_MADV_HUGEPAGE = 14
_libc = ctypes.CDLL(None, use_errno=True)


def advise_huge(memory: torch.Tensor) -> None:
    """Ask for huge pages under fresh memory of the CPU: a read into small ones waits for each to be made.

    Only advice: where the system does not take it, nothing changes.
    """
    start = -(-memory.data_ptr() // PAGE) * PAGE
    size = (memory.data_ptr() + memory.nbytes - start) // PAGE * PAGE
    if size > 0 and hasattr(_libc, "madvise"):
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def room(size: int, device: torch.device) -> int:
    """Bytes of the file that a value of `size` bytes takes, wherever in a page of the CPU's memory it begins."""
    return pages(size + PAGE) if device.type == "cpu" and size else pages(size)


def destination(size: int, device: torch.device) -> int:
    """Bytes allocated on the device for a value of `size` bytes that comes back.

    On the CPU whole pages are read to memory, and one page more lets them begin at a page.
    """
    return room(size, device) + PAGE if device.type == "cpu" and size else size


class NvmeTier(ScratchFile):
    """The scratch file as a place for the values of one device."""

    def offload(self, name: str, tensor: torch.Tensor, settings: Settings) -> PendingCopy:
        """A copy of `tensor` to a slot of the file, not yet begun. Raises OffloadError where there is no room."""
        layout = Layout.of(tensor)
        try:
            slot = self.take(room(layout.nbytes, tensor.device), settings.limit, settings.margin)
            gpudirect = settings.gpudirect and not settings.verify and self.register(settings.limit, settings.margin)
        except OffloadError as error:
            raise OffloadError(error.reason, value=name, tier="nvme", path=self.folder) from error
        in_place = tensor.device.type == "cpu" and not gpudirect
        # The file holds the pages that the value lies in, so it begins this far into its slot.
        shift = tensor.data_ptr() % PAGE if layout.nbytes and in_place else 0
        size = shift + layout.nbytes
        blocks = -(-size // self.block)
        value = OffloadedValue(
            name,
            "nvme",
            self.folder,
            layout,
            slot,
            verify=settings.verify,
            blocks=blocks,
            shift=shift,
            gpudirect=gpudirect,
        )
        return (_DirectOut if gpudirect else _InPlaceOut if in_place else _Out)(value, tensor, self)

    def empty(self, value: OffloadedValue, layout: Layout) -> torch.Tensor:
        """An uninitialised tensor for a value that comes back; on the CPU as far into a page as it was when it left."""
        if layout.device.type != "cpu" or not layout.nbytes:
            return layout.empty()
        memory = torch.empty(destination(layout.nbytes, layout.device), dtype=torch.uint8)
        advise_huge(memory)
        start = -memory.data_ptr() % PAGE + value.shift
        # A storage that begins there: with an offset into a larger one, an as_strided in the graph would go wrong.
        storage = memory.untyped_storage()[start : start + layout.nbytes]
        return torch.empty(0, dtype=layout.dtype).set_(storage, 0, layout.size, layout.stride)

    def reload(self, value: OffloadedValue, tensor: torch.Tensor) -> PendingCopy:
        """A copy of a value back to `tensor`, which `empty` has made, not yet begun."""
        in_place = tensor.device.type == "cpu"
        return (_DirectBack if value.gpudirect else _InPlaceBack if in_place else _Back)(value, tensor, self)


class _Blocks(PendingCopy):
    """A value cut into blocks. `handed` opens when each of them has been moved, or its copy is in `events`."""

    def __init__(self, value: OffloadedValue, tensor: torch.Tensor, file: ScratchFile):
        super().__init__(value, tensor)
        self.file = file
        self.size = value.shift + value.layout.nbytes
        self.blocks = -(-self.size // file.block)
        self.handed = Latch(self.blocks)
        self.events: list[Any] = []

    @property
    def lane(self) -> streams.Lane:
        """The copy stream of this direction."""
        raise NotImplementedError

    def launch(self) -> None:
        self.file.run(self._guarded, self.blocks)

    def wait(self) -> None:
        self.handed.wait()
        for event in self.events:
            streams.wait(self.device, event)

    def abandon(self) -> None:
        if self.events:
            self.lane.protect(self.memory)

    def _guarded(self, block: int) -> None:
        try:
            self.before()
            if not self.cancelled and not self.value.lost:
                start = block * self.file.block
                self.move(block, start, min(start + self.file.block, self.size))
        except OSError as error:
            self.value.fail(error.strerror or str(error), error)
        except BaseException as error:  # the thread must not die of it, and nobody may take the value for intact
            self.value.fail(f"{type(error).__name__}: {error}", error)
        finally:
            self.done(block)

    def before(self) -> None:
        sanitizer.dawdle()

    def move(self, block: int, start: int, end: int) -> None:
        raise NotImplementedError

    def done(self, block: int) -> None:
        self.handed.down(block)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        event = self.lane.copy(target, source, self.ready)
        self.events.append(event)
        if self.cancelled:  # after the append: `abandon` sees the event, or this sees the flag
            self.lane.protect(self.memory)
        return event

    def pages_of(self, start: int, end: int) -> memoryview:
        """The pages of memory that a block of the value lies in; the first and the last may hold others' bytes too."""
        memory = ctypes.c_char * pages(end - start)
        return memoryview(memory.from_address(self.memory.data_ptr() - self.value.shift + start)).cast("B")

    def own(self, data: memoryview, start: int, end: int) -> memoryview:
        """The part of a block's pages that is the value's."""
        return data[max(self.value.shift - start, 0) : end - start]


class _OutBlocks(_Blocks):
    @property
    def lane(self) -> streams.Lane:
        return self.lanes.out

    def done(self, block: int) -> None:
        super().done(block)
        self.value.written.down(block)


class _BackBlocks(_Blocks):
    @property
    def lane(self) -> streams.Lane:
        return self.lanes.back

    def before(self) -> None:
        # The writes were given to the same threads before: they are done or being done, so this ends.
        self.value.written.wait()
        super().before()


class _InPlaceOut(_OutBlocks):
    def move(self, block: int, start: int, end: int) -> None:
        data = self.pages_of(start, end)
        self.value.note(block, self.own(data, start, end))
        self.file.store(data, self.value.slot.start + start)


class _InPlaceBack(_BackBlocks):
    def move(self, block: int, start: int, end: int) -> None:
        data = self.pages_of(start, end)
        self.file.load(data, self.value.slot.start + start)
        self.value.compare(block, self.own(data, start, end))


class _Out(_OutBlocks):
    def move(self, block: int, start: int, end: int) -> None:
        with self.file.staging() as buffer:
            streams.join(self.copy(buffer.tensor[: end - start], self.memory[start:end]))  # a thread of the file waits
            self.handed.down(block)
            self.value.note(block, buffer.view[: end - start])
            self.file.store(buffer.view[: pages(end - start)], self.value.slot.start + start)


class _Back(_BackBlocks):
    def move(self, block: int, start: int, end: int) -> None:
        with self.file.staging() as buffer:
            self.file.load(buffer.view[: pages(end - start)], self.value.slot.start + start)
            self.value.compare(block, buffer.view[: end - start])
            buffer.event = self.copy(self.memory[start:end], buffer.tensor[: end - start])


def _whole(start: int, end: int) -> int:
    """The end of the whole pages of a block."""
    return end - (end - start) % PAGE


# GPUDirect follows no stream, so no stream protects the memory: this object refers to it until the call has returned.
class _DirectOut(_Out):
    def move(self, block: int, start: int, end: int) -> None:
        middle = _whole(start, end)
        if middle > start:
            streams.join(self.ready)
            self.file.store_direct(self.memory[start:middle], self.value.slot.start + start)
        if end > middle:
            super().move(block, middle, end)


class _DirectBack(_Back):
    def move(self, block: int, start: int, end: int) -> None:
        middle = _whole(start, end)
        if middle > start:
            streams.join(self.ready)  # until then, kernels that were given the memory before may use it
            self.file.load_direct(self.memory[start:middle], self.value.slot.start + start)
        if end > middle:
            super().move(block, middle, end)
