"""A nameless scratch file with direct I/O, and the threads that read and write it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime import gpudirect, space
from memgraph.runtime.gpudirect import GpuDirect, Opener
from memgraph.runtime.host import Memory
from memgraph.runtime.reservations import Reservations, listed
from memgraph.runtime.slots import PAGE, Slot, Slots, pages
from memgraph.runtime.space import Calls
from memgraph.runtime.staging import Buffer, Ring

# Among the fastest of 1 to 4 threads and blocks of 1 to 16 MiB (raw direct I/O alone, two cores, a virtual disk).
THREADS = 3
BLOCK = 4 << 20
_RETRIES = 8  # of a call that moved less than a page

_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}


class ScratchFile:
    """The scratch file of one device in one folder. It exists while a reservation or a value needs it.

    Attributes:
        file: its descriptor, -1 while there is none.
        direct: whether reads and writes bypass the page cache; None before the first file.
        note: why they do not, "" where they do.
        gpudirect: the file, registered for GPUDirect; None where it is not.
        refusal: why it could not be registered, "" where it was, or nobody asked.
        written, read: bytes moved so far.
    """

    def __init__(
        self,
        folder: str,
        device: torch.device,
        calls: Calls | None = None,
        memory: Memory | None = None,
        threads: int = THREADS,
        block: int = BLOCK,
        gds: Opener | None = None,
    ):
        self.folder, self.device, self.calls = folder, device, calls or Calls()
        self.threads, self.block = threads, block
        self.direct: bool | None = None
        self.note = ""
        self.gpudirect: GpuDirect | None = None
        self.refusal = ""
        self._gds = gds or gpudirect.opener(device)
        self.written = self.read = 0
        self.file = -1
        self.reservations = Reservations()
        self._lock = threading.Lock()
        self._counts = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None
        self._process = 0
        self._ring = Ring(block, device, memory or Memory())
        self.slots = Slots()

    # -- space

    def reserve(self, size: int, limit: int | None = None, margin: float | None = None, owner: str = "") -> int:
        """Reserve `size` bytes of the disk beside all earlier reservations; return the number that `release` takes.

        limit: the most bytes of the file.  margin: what stays free on the disk (space.Space).  owner: for messages.
        Raises OffloadError where there is no room; nothing is taken of the disk then.
        """
        with self._opened():
            self.reservations.settle()
            wanted = self.reservations.total + pages(size)
            if wanted > self.slots.total:
                self._grow(wanted - self.slots.total, limit, margin)
            return self.reservations.add(owner, pages(size))

    def release(self, number: int) -> None:
        """End a reservation. Where it was the last and no value is in the file, close the file and end its threads."""
        self.reservations.leave(number)
        self.trim()

    def trim(self) -> None:
        """Close the file where no reservation and no value needs it."""
        with self._lock:
            self._close_if_idle()

    def settle(self) -> None:
        """Account for reservations that ended and for slots that came back; after the first, close an idle file."""
        with self._lock:
            if self.reservations.settle():
                self._close_if_idle()
            self.slots.settle()

    def reserved(self) -> tuple[tuple[str, int], ...]:
        """Who has reserved how many bytes, the largest first."""
        with self._lock:
            self.reservations.settle()
            return self.reservations.holders()

    def take(self, size: int, limit: int | None, margin: float | None = None) -> Slot:
        """A slot for `size` bytes; the file grows where none is free. Raises OffloadError."""
        with self._opened():
            return self._take(size, limit, margin)

    def _take(self, size: int, limit: int | None = None, margin: float | None = None) -> Slot:
        slot = self.slots.take(size) or self._grow(pages(size), limit, margin, take=size)
        assert slot is not None  # `take` asks for one
        return slot

    def _grow(self, size: int, limit: int | None, margin: float | None, take: int = 0) -> Slot | None:
        """Make the file `size` bytes longer. With `take`, return a slot of so many of them. Raises OffloadError."""
        total = self.slots.total
        if limit is not None and total + size > limit:
            held = listed(self.reservations.holders())
            raise self._error(
                f"the file holds {total} bytes and needs {size} more; its limit is {limit}"
                + f" (reserved: {held})" * bool(held)
            )
        try:
            space.reserve(
                self.calls, self.file, self.folder, offset=total, size=size, margin=margin, write=self._write_zeros
            )
        except OSError as error:
            raise self._error(f"{size} bytes cannot be reserved: {error.strerror or error}") from error
        return self.slots.add(total, size, apart=False, take=take)

    def _write_zeros(self, offset: int, size: int) -> None:
        """Reserve by writing, on a file system that cannot do it otherwise."""
        with self.staging() as buffer:
            ctypes.memset(buffer.address, 0, self.block)
            for start in range(0, size, self.block):
                count = min(self.block, size - start)
                self._all(self.calls.pwrite, buffer.view[:count], offset + start)

    # -- the file

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Within it the lock is held and the file is open. After an error, a file that nobody needs is closed."""
        with self._lock:
            self._open()
            try:
                yield
            except BaseException:
                self._close_if_idle()
                raise

    def _open(self) -> None:
        if self.file >= 0:
            return
        self.refusal = ""
        try:
            self._ring.fill(self.threads * 2)
            try:
                self.file = self._nameless(getattr(os, "O_DIRECT", 0))
                self._probe()
                self.direct, self.note = hasattr(os, "O_DIRECT"), ""
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._shut()
                self.file = self._nameless(0)
                self.direct, self.note = False, "buffered: the file system takes no O_DIRECT"
        except OSError as error:
            self._shut()
            raise self._error(f"no scratch file can be opened: {error.strerror or error}") from error
        self._workers, self._process = ThreadPoolExecutor(self.threads, "memgraph-nvme"), os.getpid()

    def _nameless(self, flags: int) -> int:
        """A file without a name, which goes with its descriptor however the process ends."""
        flags |= os.O_RDWR | os.O_CLOEXEC
        if nameless := getattr(os, "O_TMPFILE", 0):
            try:
                return self.calls.open(self.folder, flags | nameless, 0o600)
            except OSError as error:
                if error.errno not in _NO_NAMELESS:
                    raise
        name = os.path.join(self.folder, f".memgraph-{secrets.token_hex(8)}")
        file = self.calls.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
        self.calls.unlink(name)
        return file

    def _probe(self) -> None:
        """Some file systems take O_DIRECT when a file is opened and refuse the first write."""
        with self.staging() as buffer:
            self.calls.pwrite(self.file, buffer.view[:PAGE], 0)

    def register(self, limit: int | None = None, margin: float | None = None) -> bool:
        """Whether the file is registered for GPUDirect: tried once for each file. `refusal` says why it is not.

        It is tried on a page, for which the file may grow: limit, margin as of `reserve`. Raises OffloadError where no
        file can be opened.
        """
        with self._lock:
            self._open()
            if self.gpudirect is None and not self.refusal:
                try:
                    self.gpudirect = self._registered(limit, margin)
                except Exception as error:  # whatever it is, values can be staged
                    self.refusal = gpudirect.why(error)
            return self.gpudirect is not None

    def _registered(self, limit: int | None, margin: float | None) -> GpuDirect:
        if self._gds is None:
            raise OSError(errno.ENOTSUP, gpudirect.ON_CPU)
        if not self.direct:
            raise OSError(errno.ENOTSUP, "the file system takes no O_DIRECT")
        page = self._take(PAGE, limit, margin)
        return gpudirect.attach(self.file, self.device, self._gds, page.start)

    def _shut(self) -> None:
        self.gpudirect = None  # cuFile is told before the file goes
        if self.file >= 0:
            file, self.file = self.file, -1
            self.calls.close(file)

    def disown(self) -> None:
        """In a forked child: close this process's copy of the descriptor.

        Takes no lock: the thread that may have held it does not exist here.
        """
        file, self.file = self.file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                self.calls.close(file)

    def _close_if_idle(self) -> None:
        self.reservations.settle()
        self.slots.settle()
        if self.file < 0 or self.reservations.total or self.slots.live:
            return
        assert self._workers is not None  # the file is open
        self._workers.shutdown()  # nothing is under way: a transfer holds its slot
        self._shut()
        self._ring.empty()
        peak, self.slots = self.slots.peak, Slots()
        self.slots.peak = peak

    # -- blocks

    def run(self, job: Callable[[int], None], blocks: int) -> None:
        """Do `job(block)` for each block, on the threads of this file, in this order. `job` must not raise."""
        if self._process != os.getpid():
            raise self._error("the file was opened by another process, which has forked this one: values stay there")
        assert self._workers is not None  # a slot is taken, so the file is open
        for block in range(blocks):
            self._workers.submit(job, block)

    def staging(self) -> contextlib.AbstractContextManager[Buffer]:
        """A buffer of the ring, as soon as one is free."""
        return self._ring.buffer()

    def _all(self, call: Callable[[int, memoryview, int], int], data: memoryview, offset: int) -> None:
        """Move all of `data`, whole pages, however little a call moves. Raises OSError."""
        done = stuck = 0
        while done < len(data):
            try:
                count = call(self.file, data[done:], offset + done)
            except InterruptedError:
                continue
            if not count:
                raise OSError(errno.EIO, "the file ended before the value did")
            done, before = done + count, done
            if done < len(data):
                done -= done % PAGE  # direct I/O starts at a page only
            stuck = stuck + 1 if done == before else 0
            if stuck == _RETRIES:
                raise OSError(errno.EIO, f"{_RETRIES} calls moved less than a page each")

    def store(self, data: memoryview, offset: int) -> None:
        """Write whole pages that begin at a page. Raises OSError."""
        self._all(self.calls.pwrite, data, offset)
        with self._counts:
            self.written += len(data)

    def load(self, data: memoryview, offset: int) -> None:
        """Read whole pages to memory that begins at a page. Raises OSError."""
        self._all(self.calls.pread, data, offset)
        with self._counts:
            self.read += len(data)

    def store_direct(self, data: torch.Tensor, offset: int) -> None:
        """Write whole pages of the device's memory by GPUDirect. Raises OSError."""
        assert self.gpudirect is not None  # `register` said so
        self.gpudirect.store(data, offset)
        with self._counts:
            self.written += data.nbytes

    def load_direct(self, data: torch.Tensor, offset: int) -> None:
        """Read whole pages to the device's memory by GPUDirect. Raises OSError."""
        assert self.gpudirect is not None  # `register` said so
        self.gpudirect.load(data, offset)
        with self._counts:
            self.read += data.nbytes

    def _error(self, reason: str) -> OffloadError:
        return OffloadError(reason, tier="nvme", path=self.folder)
