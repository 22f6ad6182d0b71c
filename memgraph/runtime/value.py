"""An offloaded value: what it looks like as a tensor, where its bytes lie, and whether they are still the same."""

from __future__ import annotations

import functools
import json
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from memgraph.base.errors import OffloadError, OptionsError
from memgraph.runtime import streams
from memgraph.runtime.slots import Slot


@dataclass(frozen=True)
class Settings:
    """What the `options` string of the ops holds, as a JSON object.

    Attributes:
        folder: where the scratch file lies (tier nvme). limit: its most bytes. margin: what of the disk stays free
        (space.Space); None for the default. cap: the most bytes of the host pool. None sets no bound. verify: keep a
        checksum of each value and compare it. window: bytes that may be loaded early for the graph that ran before
        this one; 0 is off. graph: a name of the graph; values of another graph, or a name that comes again, begin
        another run. gpudirect: past the memory of the host (tier nvme), where the scratch file lets itself be
        registered for it and no checksum needs the bytes there.
    """

    folder: str = ""
    limit: int | None = None
    margin: int | float | None = None
    cap: int | None = None
    verify: bool = False
    window: int = 0
    graph: str = ""
    gpudirect: bool = False

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def parse(cls, text: str) -> Settings:
        """Raises OptionsError for anything but a JSON object with the fields above."""
        try:
            given = json.loads(text)
            unknown = set(given) - {field.name for field in fields(cls)}
            if isinstance(given, dict) and not unknown:
                return cls(**given)
        except (TypeError, ValueError):
            unknown = {text}
        raise OptionsError(f"not options of the runtime: {', '.join(map(repr, sorted(unknown)))}")


@dataclass(frozen=True)
class Layout:
    """Shape, strides (elements), dtype and device of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    @classmethod
    def given(
        cls, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> Layout:
        return cls(tuple(map(int, size)), tuple(map(int, stride)), dtype, streams.exact(device))

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last, gaps included: what is stored."""
        return span(self.size, self.stride) * self.dtype.itemsize

    def holds(self, other: Layout) -> bool:
        """Whether bytes in this layout are the same tensor in the other; strides of single elements do not count."""
        return (
            (self.size, self.dtype) == (other.size, other.dtype)
            and self.nbytes == other.nbytes
            and (
                not self.nbytes
                or all(a == b for n, a, b in zip(self.size, self.stride, other.stride, strict=True) if n > 1)
            )
        )

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first of a strided tensor to its last, gaps included."""
    if not all(size):
        return 0
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor where they lie, gaps included: uint8, one dimension.

    A copy of these keeps every bit, whatever the dtype and the order of the dimensions, and needs no memory on the
    device: packing a tensor with gaps would.
    """
    flat = tensor.detach().as_strided((span(tensor.shape, tensor.stride()),), (1,))
    return flat.view(torch.uint8)


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


class Value:
    """The bytes of one offloaded tensor in a tier. Its slot goes back when the last holder drops this object.

    Attributes:
        name: the value's name in its graph. tier: "host" or "nvme". path: the scratch folder or "".
        slot: where the bytes lie, `shift` bytes into it. checksums: crc32 of each block, where they are
        kept. written: opens when all bytes are in the tier, or failed to get there. gpudirect: whether its
        whole pages move past the memory of the host.
    """

    def __init__(
        self,
        name: str,
        tier: str,
        path: str,
        layout: Layout,
        slot: Slot,
        *,
        verify: bool,
        blocks: int,
        shift: int = 0,
        gpudirect: bool = False,
    ):
        self.name, self.tier, self.path, self.layout, self.slot, self.verify = name, tier, path, layout, slot, verify
        self.shift, self.gpudirect = shift, gpudirect
        self.checksums: dict[int, int] = {}
        self.written = Latch(blocks)
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


class Transfer:
    """One value on its way out of a device or back, between a start and its finish.

    `launch` starts the copy, `wait` makes the compute stream wait for it, `abandon` keeps the memory of a copy that
    nobody will wait for in place for as long as it may be touched.
    """

    def __init__(self, value: Value, tensor: torch.Tensor):
        self.value = value
        self.device = tensor.device
        self.on_device: torch.Tensor | None = bytes_of(tensor)
        self.ready = streams.mark(tensor.device)  # the bytes, or the memory for them, are there from here on
        self.lanes = streams.lanes(tensor.device)
        self.cancelled = False
        self._launched = False

    def start(self) -> None:
        """Launch, once."""
        if not self._launched:
            self._launched = True
            self.launch()

    def finish(self) -> None:
        """Make the compute stream wait for the copy. Raises OffloadError where the value is lost."""
        self.start()
        self.wait()
        self.value.check()
        self.on_device = None  # the device's memory is free from here, though blocks may still be on their way

    def cancel(self) -> None:
        """Give up: the ticket was dropped. Nothing after `finish`."""
        if self.on_device is not None:
            self.cancelled = True
            self.abandon()

    def launch(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        raise NotImplementedError
