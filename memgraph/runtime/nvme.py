"""The NVMe tier: values in a scratch file, moved in large blocks by a few threads through staging buffers.

    out:   device --copy--> staging buffer --pwrite--> file        offload_finish waits for the copies of all blocks
    back:  file --pread--> staging buffer --copy--> device         reload_finish waits for the copies of all blocks

A read of a value waits for its writes. A failed block makes the value lost: who asks for it next gets the error.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from memgraph.errors import OffloadError
from memgraph.runtime import sanitizer, streams
from memgraph.runtime.scratch import Scratch
from memgraph.runtime.value import Latch, Layout, Settings, Transfer, Value


class NvmeTier(Scratch):
    """The scratch file as a place for the values of one device."""

    def offload(self, name: str, tensor: torch.Tensor, settings: Settings) -> Transfer:
        layout = Layout.of(tensor)
        try:
            slot = self.take(layout.nbytes, settings.limit)
        except OffloadError as error:
            raise OffloadError(error.reason, value=name, tier="nvme", path=self.folder) from error
        blocks = -(-layout.nbytes // self.block)
        value = Value(name, "nvme", self.folder, layout, slot, verify=settings.verify, blocks=blocks)
        return _Out(value, tensor, self)

    def reload(self, value: Value, tensor: torch.Tensor) -> Transfer:
        return _Back(value, tensor, self)


class _Blocks(Transfer):
    """A value cut into blocks. `handed` opens when all copies between device and staging are on their lane."""

    def __init__(self, value: Value, tensor: torch.Tensor, scratch: Scratch):
        super().__init__(value, tensor)
        self.scratch = scratch
        self.blocks = -(-value.layout.nbytes // scratch.block)
        self.handed = Latch(self.blocks)
        self.events: list[Any] = []

    def launch(self) -> None:
        self.scratch.run(self._guarded, self.blocks)

    def wait(self) -> None:
        self.handed.wait()
        for event in self.events:
            streams.wait(self.device, event)

    def _guarded(self, block: int) -> None:
        try:
            self.move(block, block * self.scratch.block)
        except OSError as error:
            self.value.fail(error.strerror or str(error), error)
        except BaseException as error:  # the thread must not die of it, nor anyone take the value for good
            self.value.fail(f"{type(error).__name__}: {error}", error)
        finally:
            self.done(block)

    def move(self, block: int, start: int) -> None:
        raise NotImplementedError

    def done(self, block: int) -> None:
        self.handed.down(block)

    def size(self, start: int) -> int:
        return min(self.scratch.block, self.value.layout.nbytes - start)

    def copy(self, lane: streams.Lane, target: torch.Tensor, source: torch.Tensor) -> Any:
        if lane.stream is None:
            # One thread: torch's own copy would start a team of OpenMP threads in each of ours.
            ctypes.memmove(target.data_ptr(), source.data_ptr(), target.numel())
            return None
        event = lane.copy(target, source, self.ready)
        self.events.append(event)
        if self.cancelled:  # after the append: `abandon` sees the event, or this sees the flag
            lane.protect(self.on_device)
        return event


class _Out(_Blocks):
    def move(self, block: int, start: int) -> None:
        if self.cancelled or self.value.lost:
            return
        size = self.size(start)
        with self.scratch.staging() as buffer:
            event = self.copy(self.lanes.out, buffer.tensor[:size], self.on_device[start : start + size])
            if event is not None:
                event.synchronize()  # on a thread of ours: the one that computes goes on
            self.handed.down(block)
            sanitizer.dawdle()
            self.value.note(block, buffer.view[:size])
            self.scratch.store(buffer, size, self.value.slot.start + start)

    def done(self, block: int) -> None:
        super().done(block)
        self.value.written.down(block)

    def abandon(self) -> None:
        if self.events:
            self.lanes.out.protect(self.on_device)


class _Back(_Blocks):
    def move(self, block: int, start: int) -> None:
        # The writes were given to the same threads before: they are done or being done, so this ends.
        self.value.written.wait()
        if self.cancelled or self.value.lost:
            return
        size = self.size(start)
        sanitizer.dawdle()
        with self.scratch.staging() as buffer:
            self.scratch.load(buffer, size, self.value.slot.start + start)
            self.value.compare(block, buffer.view[:size])
            buffer.event = self.copy(self.lanes.back, self.on_device[start : start + size], buffer.tensor[:size])

    def abandon(self) -> None:
        if self.events:
            self.lanes.back.protect(self.on_device)
