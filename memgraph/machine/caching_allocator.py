"""torch's caching allocator on CUDA, as far as bytes go: which block each tensor gets, and how large that is.

A tensor counts as the whole block that it gets. Small ones (up to 1 MiB) get a part of a segment of 2 MiB, cut to 512
bytes. Larger ones get the smallest free block that is large enough, of a segment of 20 MiB, or from 10 MiB on of its
own size in whole 2 MiB; what is left of it becomes a block of its own only if it is more than 1 MiB. So a large tensor
may count as up to 1 MiB more than was asked for. (Segments that expand are always cut to 512 bytes.)
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import os
from collections.abc import Hashable, Sequence

from memgraph.base.sizes import round_up

KIB, MIB = 1024, 1024**2
EXPAND = "PYTORCH_ALLOC_CONF=expandable_segments:True"
BLOCK = 512  # sizes are rounded up to it
SMALL = MIB  # the largest tensor of a small segment, and the most that is left uncut of a large block
# The share of a step's peak by which its tensors may count as more than `in_blocks` says: the cache also holds blocks
# that others have left, whose sizes are not known. Seen: 0.01 % (docs/decisions/0013-simulator.md).
OTHERS_BLOCKS = 1 / 2048
# Bytes by which all tensors of a step of several graphs may count as more than they did when it began: each graph finds
# blocks that the others have left, and not the same in each step. Seen: two blocks, 1.4 MB (as above).
SEVERAL_GRAPHS = 2 * MIB
_OWN_SEGMENT = 10 * MIB
_STEPS = 4  # repetitions at most; most steps allocate the same blocks from the second on


@dataclasses.dataclass(eq=False)
class _Block:
    """A stretch of a segment; its neighbours are linked."""

    segment: int
    start: int
    size: int
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """Among free blocks the smallest comes first, of equal ones that of the older segment."""
        return self.size, self.segment, self.start


class CachingAllocator:
    """Runs the policy for one stream, from an empty cache.

    `allocated` and `reserved` are its counters, in bytes.
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self._free: dict[bool, list[tuple[tuple[int, int, int], _Block]]] = {True: [], False: []}  # by small
        self._live: dict[Hashable, tuple[_Block, bool]] = {}
        self.segments: list[int] = []
        """Bytes of each segment, in the order in which they were taken from the device."""

    def place(self, name: Hashable) -> tuple[int, int, int]:
        """Where a live tensor lies: the number of its segment, the start of its block in it, and the block's bytes."""
        block, _ = self._live[name]
        return block.segment, block.start, block.size

    def allocate(self, name: Hashable, size: int) -> int:
        """Allocate `size` bytes for a tensor; returns the bytes that it counts as.  name: of no live tensor."""
        size = max(BLOCK, round_up(size, BLOCK))
        small = size <= SMALL
        block = self._taken(size, small) or self._segment(size)
        left = block.size - size
        if left >= BLOCK if small else left > SMALL:
            rest = _Block(block.segment, block.start + size, left, block, block.after)
            if rest.after is not None:
                rest.after.before = rest
            block.size, block.after = size, rest
            self._give(rest, small)
        self._live[name] = block, small
        self.allocated += block.size
        return block.size

    def free(self, name: Hashable) -> int:
        """Free a tensor; returns the bytes that it counted as."""
        block, small = self._live.pop(name)
        size = block.size
        self.allocated -= size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._withdraw(other, small)
        if (before := block.before) is not None and before.free:
            block.start, block.size, block.before = before.start, before.size + block.size, before.before
            if block.before is not None:
                block.before.after = block
        if (after := block.after) is not None and after.free:
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        self._give(block, small)
        return size

    def _taken(self, size: int, small: bool) -> _Block | None:
        """The smallest free block that is large enough, no longer free; None where there is none."""
        free = self._free[small]
        place = bisect.bisect_left(free, (size, -1, -1), key=lambda entry: entry[0])
        if place == len(free):
            return None
        block = free.pop(place)[1]
        block.free = False
        return block

    def _segment(self, size: int) -> _Block:
        bytes_ = 2 * MIB if size <= SMALL else 20 * MIB if size < _OWN_SEGMENT else round_up(size, 2 * MIB)
        self.reserved += bytes_
        self.segments.append(bytes_)
        return _Block(len(self.segments) - 1, 0, bytes_)

    def _give(self, block: _Block, small: bool) -> None:
        block.free = True
        bisect.insort(self._free[small], (block.order, block), key=lambda entry: entry[0])

    def _withdraw(self, block: _Block, small: bool) -> None:
        free = self._free[small]
        del free[bisect.bisect_left(free, block.order, key=lambda entry: entry[0])]


def in_blocks(changes: Sequence[tuple[Hashable, int]]) -> list[int]:
    """The changes of a step as bytes of whole blocks, in that repetition of the step that peaks highest.

    The first repetition begins with an empty cache, each other one with the blocks that the one before has left, which
    may be a little larger than what is asked for. What a step leaves allocated is freed at its end.

    changes: the name of a tensor and its bytes, positive when it is allocated, negative when it is freed. The free of
    what was allocated before the step keeps its bytes, as no block of it is known here.
    """
    allocator, steps = CachingAllocator(), list[list[int]]()
    while len(steps) < _STEPS and (len(steps) < 2 or steps[-1] != steps[-2]):
        steps.append(_step(allocator, changes))
    return max(steps, key=lambda sizes: max(itertools.accumulate(sizes), default=0))


def _step(allocator: CachingAllocator, changes: Sequence[tuple[Hashable, int]]) -> list[int]:
    found, live = [], dict[Hashable, None]()
    for name, size in changes:
        if size > 0 and name not in live:
            live[name] = None
            found.append(allocator.allocate(name, size))
        elif size < 0 and name in live:
            del live[name]
            found.append(-allocator.free(name))
        else:
            found.append(size)
    for name in live:
        allocator.free(name)
    return found


def may_rise(device: str, uncut: int) -> int:
    """Bytes by which a level within a step of several graphs may still rise with nothing more asked for.

    device: as `leaves_uncut` takes it.  uncut: bytes that blocks already count as more than when the step began.
    """
    return max(0, SEVERAL_GRAPHS - max(0, uncut)) if leaves_uncut(device) else 0


def leaves_uncut(device: str) -> bool:
    """Whether a tensor on `device` ("cpu", "cuda") may count as more than its own size in whole 512 bytes.

    Not where this process's allocator is told to expand its segments: then each block is cut.
    """
    told = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return device == "cuda" and "expandable_segments:true" not in told.lower().replace(" ", "")
