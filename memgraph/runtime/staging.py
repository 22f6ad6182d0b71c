"""Page-locked buffers on the way between a device and the scratch file, in a ring that several threads share."""

from __future__ import annotations

import contextlib
import ctypes
import queue
from collections.abc import Iterator
from typing import Any

import torch

from memgraph.runtime import sanitizer
from memgraph.runtime.host import Memory, Segment


class Buffer:
    """One buffer of the ring.

    Attributes:
        tensor, view, address: its bytes as a uint8 tensor and as a memoryview, and where they begin.
        event: the copy that still reads from it, None where there is none.
    """

    def __init__(self, segment: Segment):
        self.tensor, self.view, self.address = segment.tensor, segment.view, segment.address
        self.release = segment.release
        self.event: Any = None

    def wait(self) -> None:
        """Make the calling thread wait for the copy that still reads from the buffer."""
        if self.event is not None:
            self.event.synchronize()
            self.event = None


class Ring:
    """Buffers of `block` bytes each, handed out one at a time."""

    def __init__(self, block: int, device: torch.device, memory: Memory):
        self.block, self.device, self._memory = block, device, memory
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()

    def fill(self, count: int) -> None:
        """Have `count` buffers, while none is in use. Raises OffloadError where memory is refused."""
        for _ in range(count - self._free.qsize()):
            self._free.put(Buffer(Segment(self.block, self.device, self._memory, "staging buffer")))

    @contextlib.contextmanager
    def buffer(self) -> Iterator[Buffer]:
        """A buffer, as soon as one is free."""
        buffer = self._free.get()
        try:
            buffer.wait()  # on a thread of ours: the one that computes goes on
            yield buffer
        finally:
            if sanitizer.active() and buffer.event is None:
                ctypes.memset(buffer.address, sanitizer.POISON, self.block)
            self._free.put(buffer)

    def empty(self) -> None:
        """Give all buffers back to the system, while none is in use."""
        while not self._free.empty():
            buffer = self._free.get()
            buffer.wait()
            buffer.release()
