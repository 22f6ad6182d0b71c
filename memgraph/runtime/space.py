"""Reserve room on a disk: free room is counted first, a margin stays free, and a refused reservation is undone.

`posix_fallocate` takes all the room that there is before it fails, and until that is given back every other program
fails for want of it. So the file system is asked first, and a margin of it stays free for others.

Processes that use the same scratch folder take turns, and room is counted again after it was taken: where others took
some meanwhile and the margin is gone, the reservation is given back and refused. What is not guaranteed: another
program, or memgraph in another folder of the same file system, may take room between the count and the reservation;
then the margin is smaller for as long as the reservation takes. What others take later is not bounded by anybody. Nor
does the count know of quotas: these are refused by the system, and what was taken until then goes back.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memgraph.base.sizes import format_size

try:
    import fcntl
except ImportError:  # without it, processes do not take turns
    fcntl = None  # type: ignore[assignment]

# What stays free unless the options say otherwise: this share of the file system, but at most so many bytes.
SHARE = 0.05
MOST = 1 << 30

_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


@dataclass(frozen=True)
class Space:
    """Bytes of a file system: its size, and what this user may still allocate."""

    size: int
    free: int

    @classmethod
    def of(cls, place: int | str) -> Space:
        """The file system of an open file or of a path. Raises OSError."""
        found = os.statvfs(place)
        return cls(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def margin(self, wanted: float | None) -> int:
        """Bytes to leave free.  wanted: bytes (int), a share of the file system (float), or None for the default."""
        if wanted is None:
            return min(int(self.size * SHARE), MOST)
        return int(self.size * wanted) if isinstance(wanted, float) else wanted


class Calls:
    """The system calls of a scratch file; all raise OSError. Tests pass an object whose calls fail."""

    def open(self, path: str, flags: int, mode: int) -> int:
        return os.open(path, flags, mode)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def close(self, file: int) -> None:
        os.close(file)

    def space(self, file: int) -> Space:
        return Space.of(file)

    def fallocate(self, file: int, offset: int, size: int) -> None:
        os.posix_fallocate(file, offset, size)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def pwrite(self, file: int, data: memoryview, offset: int) -> int:
        return os.pwritev(file, [data], offset)

    def pread(self, file: int, data: memoryview, offset: int) -> int:
        return os.preadv(file, [data], offset)


@contextlib.contextmanager
def turn(folder: str) -> Iterator[None]:
    """Lock the folder, so that no other reservation in it runs meanwhile, in this process or another.

    A folder that cannot be locked (some network file systems) is not locked, and nobody waits.
    """
    handle = -1
    try:
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def reserve(
    calls: Calls,
    file: int,
    folder: str,
    *,
    offset: int,
    size: int,
    margin: float | None,
    write: Callable[[int, int], None],
) -> None:
    """Allocate `size` bytes of the disk at `offset`, the end of the file, and leave `margin` (as in Space) free.

    write(offset, size): allocates by writing, for file systems without fallocate.
    Raises OSError. The file then has its old length, and the disk has its bytes back.
    """
    with turn(folder):
        _check(calls, file, size, margin)
        try:
            try:
                calls.fallocate(file, offset, size)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                write(offset, size)
            _check(calls, file, 0, margin)
        except BaseException:
            with contextlib.suppress(OSError):
                calls.truncate(file, offset)
            raise


def _check(calls: Calls, file: int, size: int, margin: float | None) -> None:
    """Raise OSError where the file system has no room for `size` bytes more and the margin."""
    space = calls.space(file)
    left = space.margin(margin)
    if size > space.free - left:
        raise OSError(errno.ENOSPC, f"the file system has {describe(space.free, left)} (option 'offload.nvme.margin')")


def describe(free: int, margin: int) -> str:
    """How much room there is, as text."""
    return (
        f"{format_size(free)} free ({free} bytes), of which {format_size(margin)} ({margin} bytes) stay free for others"
    )
