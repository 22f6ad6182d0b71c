"""An offloaded value: where its bytes lie, and whether they are still the same."""

from __future__ import annotations

import threading
import zlib

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime.layout import Layout
from memgraph.runtime.slots import Slot


class Latch:
    """Opens when each of `parts` parts is done."""

    def __init__(self, parts: int):
        self._waiting = set(range(parts))
        self._lock = threading.Lock()
        self._open = threading.Event()
        if not parts:
            self._open.set()

    def down(self, part: int) -> None:
        """A part is done; to say so again changes nothing."""
        with self._lock:
            self._waiting.discard(part)
            if not self._waiting:
                self._open.set()

    def wait(self) -> None:
        self._open.wait()


_OPEN = Latch(0)


class OffloadedValue:
    """The bytes of one offloaded tensor in a tier. Its slot goes back when the last holder drops this object.

    Attributes:
        name: the value's name in its graph.
        tier: "host" or "nvme".
        path: the scratch folder, "" for the host tier.
        slot: where the bytes lie; they begin `shift` bytes into it.
        stored: the bytes themselves (uint8), where the tier is memory.
        checksums: crc32 of each block, where they are kept.
        written: opens when all bytes are in the tier, or failed to get there.
        gpudirect: whether its whole pages move past the memory of the host.
    """

    def __init__(
        self,
        name: str,
        tier: str,
        path: str,
        layout: Layout,
        slot: Slot,
        *,
        stored: torch.Tensor | None = None,
        verify: bool,
        blocks: int,
        shift: int = 0,
        gpudirect: bool = False,
    ):
        self.name, self.tier, self.path, self.layout, self.slot, self.verify = name, tier, path, layout, slot, verify
        self.stored, self.shift, self.gpudirect = stored, shift, gpudirect
        self.checksums: dict[int, int] = {}
        self.written = Latch(blocks) if blocks else _OPEN
        self._failure: tuple[str, BaseException | None] | None = None

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """Note why the value is lost; the first reason stands."""
        if self._failure is None:
            # A traceback would keep the frames of the thread alive, and the tensors in them.
            self._failure = reason, cause and cause.with_traceback(None)

    @property
    def lost(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raise OffloadError where the value is lost: a new one each time, as its traceback holds tensors."""
        if self._failure is not None:
            reason, cause = self._failure
            raise self.error(reason) from cause

    def error(self, reason: str) -> OffloadError:
        return OffloadError(reason, value=self.name, tier=self.tier, path=self.path)

    def note(self, block: int, data: memoryview) -> None:
        """Keep the checksum of a block that is on its way out."""
        if self.verify:
            self.checksums[block] = zlib.crc32(data)

    def compare(self, block: int, data: memoryview) -> None:
        """Fail where a block does not come back as it left."""
        if self.verify and self.checksums.get(block) != zlib.crc32(data):
            self.fail("the bytes that came back are not those that were stored (checksum)")
