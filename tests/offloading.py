"""What the tests of the runtime share: a round trip, a saved value that is offloaded, and system calls that fail."""

import errno
import gc
import json
import os
import time

import torch

from memgraph import runtime
from memgraph.runtime.scratch import Calls

ops = torch.ops.memgraph


def options(folder="", **more):
    return json.dumps({"folder": str(folder), **more})


def like(x, tier):
    return list(x.shape), list(x.stride()), x.dtype, x.device, tier


def hold(x, tier, settings, name="x"):
    return ops.offload_finish(ops.offload_start(x, name, tier, settings), x, tier)


def bring(held, x, tier):
    """The held value; of `x` only the layout is read."""
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
    """Whether nothing is held any more, once the blocks of copies that were given up have passed."""
    deadline = time.monotonic() + 10
    while live() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not live()


class Failing(Calls):
    """System calls that do as asked until `fail` is set: an errno for all of one kind, or what to do instead."""

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
    """Moves a third of what is asked for, and is interrupted every second time. `flip`: damages what it reads."""

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
