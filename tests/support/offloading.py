"""What the tests of the runtime share: a round trip, a saved value that is offloaded, and system calls that fail."""

import ctypes
import errno
import gc
import json
import mmap
import os
import time

import torch

from memgraph import runtime
from memgraph.runtime.space import Calls

ops = torch.ops.memgraph


def options(folder="", **more):
    return json.dumps({"folder": str(folder), **more})


def like(x, tier):
    return list(x.shape), list(x.stride()), x.dtype, x.device, tier


def hold(x, tier, settings, name="x"):
    return ops.offload_finish(ops.offload_start(x, name, tier, settings), x, tier)


def bring(held, x, tier):
    """The value that was held; only the layout of `x` is read."""
    return ops.reload_finish(ops.reload_start(held, *like(x, tier)), held, *like(x, tier))


def raw(x):
    """The bits of the elements, in the order of the dimensions."""
    return torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)).view(torch.uint8)


class Cube(torch.autograd.Function):
    """x ** 3, with x held in a tier between forward and backward. `after()` runs once x is held."""

    @staticmethod
    def forward(ctx, x, tier, settings, name="x", after=None):
        held = hold(x, tier, settings, name)
        if after is not None:
            after()
        ctx.save_for_backward(held)
        ctx.layout, ctx.tier = torch.empty_like(x, device="meta"), tier
        ctx.device = x.device
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (held,) = ctx.saved_tensors
        layout = ctx.layout
        arguments = list(layout.shape), list(layout.stride()), layout.dtype, ctx.device, ctx.tier
        x = ops.reload_finish(ops.reload_start(held, *arguments), held, *arguments)
        return 3 * x**2 * grad, None, None, None, None


def live():
    """Bytes that are held in all tiers."""
    now = runtime.statistics()
    if now.host_live + now.nvme_live:  # tracebacks are cycles
        gc.collect()
        now = runtime.statistics()
    return now.host_live + now.nvme_live


def drained():
    """Whether nothing is held any more; waits until abandoned copies have ended."""
    deadline = time.monotonic() + 10
    while live() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not live()


class Failing(Calls):
    """System calls, some of which fail: `failures` maps the name of a call to its errno."""

    def __init__(self, **failures):
        self.failures = failures

    def _ask(self, kind):
        failure = self.failures.get(kind)
        if failure is not None:
            raise OSError(failure, os.strerror(failure))

    def open(self, path, flags, mode):
        self._ask("open")
        return super().open(path, flags, mode)

    def fallocate(self, file, offset, size):
        self._ask("fallocate")
        super().fallocate(file, offset, size)

    def pwrite(self, file, data, offset):
        self._ask("pwrite")
        return super().pwrite(file, data, offset)

    def pread(self, file, data, offset):
        self._ask("pread")
        return super().pread(file, data, offset)


class Halting(Calls):
    """Reads and writes that move a third of what is asked for, with an interrupt every second time.

    `flip` damages what is read; `end` ends the file.
    """

    def __init__(self):
        self.calls = 0
        self.flip = self.end = False

    def _interrupted(self):
        self.calls += 1
        if self.calls % 2:
            raise InterruptedError(errno.EINTR, "interrupted")

    def pwrite(self, file, data, offset):
        if len(data) > 4096:
            self._interrupted()
        return super().pwrite(file, data[: max(4096, len(data) // 3 // 4096 * 4096)], offset)

    def pread(self, file, data, offset):
        self._interrupted()
        if self.end:
            return 0
        count = super().pread(file, data[: max(4096, len(data) // 3 // 4096 * 4096)], offset)
        if self.flip:
            data[7] ^= 1
        return count - 5 if count > 4096 else count  # not a whole page: direct I/O cannot go on from there


class Gds:
    """A `torch.cuda.gds.GdsFile` for storages of the CPU; its calls raise, as torch does, what `GdsFiles.fail` says."""

    def __init__(self, files, path, flags):
        self.files = files
        self.fd = os.open(path, flags | os.O_DIRECT)  # which refuses offsets and sizes that are not whole pages

    def __del__(self):
        os.close(self.fd)
        self.files.closed += 1

    def save_storage(self, storage, offset=0):
        self._move("save", storage, offset, os.pwritev)

    def load_storage(self, storage, offset=0):
        self._move("load", storage, offset, os.preadv)

    def _move(self, kind, storage, offset, call):
        self.files.asked(kind, storage, offset)
        size = storage.nbytes()
        aligned = mmap.mmap(-1, size)
        if kind == "save":
            aligned[:] = ctypes.string_at(storage.data_ptr(), size)
        if call(self.fd, [aligned], offset) != size:
            raise RuntimeError("short")
        if kind == "load":
            ctypes.memmove(storage.data_ptr(), bytes(aligned), size)


class GdsFiles:
    """Opens `Gds` files and keeps what was asked of them, as (kind, bytes, offset)."""

    def __init__(self, **fail):
        self.fail, self.calls, self.opened, self.closed = fail, [], 0, 0

    def __call__(self, path, flags):
        self._ask("open")
        self.opened += 1
        return Gds(self, path, flags)

    def asked(self, kind, storage, offset):
        self._ask(kind)
        self.calls.append((kind, storage.nbytes(), offset))

    def _ask(self, kind):
        if kind in self.fail:
            raise RuntimeError(f"{self.fail[kind]}\nException raised from gds_{kind}_storage")

    def of(self, kind):
        """The calls of one kind, without the first two, which try a page."""
        return [call for call in self.calls[2:] if call[0] == kind]
