"""GPUDirect Storage: whole pages between a device's memory and the scratch file, past the memory of the host.

`torch.cuda.gds` does it through NVIDIA's cuFile. In torch 2.11 to 2.13 its calls (docs/decisions/0009)

    follow no stream        the caller first waits for the bytes, or for the last kernel that used the memory
    return when all moved   the caller keeps a reference to the memory until then, and nobody waits afterwards
    hold the interpreter's lock meanwhile, raise RuntimeError, and do not compare the count of bytes
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from memgraph.runtime import streams
from memgraph.runtime.slots import PAGE

ON_CPU = "values on the CPU are written and read where they lie"


class File(Protocol):
    """The methods of `torch.cuda.gds.GdsFile` that memgraph calls; both move all bytes of the storage."""

    def save_storage(self, storage: torch.UntypedStorage, offset: int) -> None: ...

    def load_storage(self, storage: torch.UntypedStorage, offset: int) -> None: ...


Opener = Callable[[str, int], File]  # of a path and the flags of os.open


def gds_file(path: str, flags: int) -> File:
    """Open and register a file with cuFile. Raises RuntimeError where this torch or this machine has none."""
    from torch.cuda.gds import GdsFile

    file: File = GdsFile(path, flags)
    return file


def opener(device: torch.device) -> Opener | None:
    """The function that opens files for values of `device`; None for the CPU, whose values are in host memory."""
    return gds_file if device.type == "cuda" else None


class GpuDirect:
    """A scratch file that is registered with cuFile, for the memory of one device."""

    def __init__(self, file: File, device: torch.device):
        self._file, self._lanes = file, streams.lanes(device)

    def store(self, data: torch.Tensor, offset: int) -> None:
        """Write whole pages of the device's memory, whose bytes are ready. Raises OSError."""
        self._move(self._file.save_storage, self._lanes.out, data, offset)

    def load(self, data: torch.Tensor, offset: int) -> None:
        """Read whole pages into memory of the device that no kernel uses any more. Raises OSError."""
        self._move(self._file.load_storage, self._lanes.back, data, offset)

    def _move(
        self, call: Callable[[torch.UntypedStorage, int], None], lane: streams.Lane, data: torch.Tensor, offset: int
    ) -> None:
        try:
            # A later torch may order the call on the thread's stream: it must not be the one that computes.
            with lane.current():
                call(_storage(data), offset)
            return
        except RuntimeError as error:
            reason = _first_line(error)
        # Raised outside of the handler: the traceback of a cause keeps frames alive, and the tensors in them.
        raise OSError(errno.EIO, f"GPUDirect: {reason}")


def attach(file: int, device: torch.device, make: Opener, page: int) -> GpuDirect:
    """Register an open file, and check that a page at offset `page` comes back as it was written.

    Raises torch's error where cuFile refuses the file, and OSError where the page does not come back.
    """
    # The path of a file without a name; cuFile opens its own descriptor.
    attached = GpuDirect(make(f"/proc/self/fd/{file}", os.O_RDWR), device)
    out = torch.arange(PAGE, device=device).remainder_(251).to(torch.uint8)  # no draw: it would shift the user's
    back = torch.zeros_like(out)
    streams.join(streams.mark(device))
    attached.store(out, page)
    attached.load(back, page)
    if not torch.equal(out, back):
        raise OSError(errno.EIO, "GPUDirect: a page did not come back as it was written")
    return attached


def why(error: BaseException) -> str:
    """The reason of a refusal, without the C++ frames that torch may add."""
    return (error.strerror if isinstance(error, OSError) else "") or _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _storage(data: torch.Tensor) -> Any:
    """A storage of exactly these bytes, without a copy."""
    start = data.storage_offset()  # of uint8: bytes
    return data.untyped_storage()[start : start + data.nbytes]
