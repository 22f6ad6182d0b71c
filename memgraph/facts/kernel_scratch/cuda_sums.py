"""Scratch of sums over rows on CUDA, which Inductor's wrapper asks for where kernels leave partial sums in a workspace.

    workspace [rows, columns] ── sum over the rows ──> [columns]

A thread adds up some rows of one, two or four columns. Where a thread would have many rows, and the card has room for
more blocks, the rows are divided among blocks, and each leaves its sums in scratch memory, and a count for each group
of columns.
"""

from __future__ import annotations

import torch

from memgraph.facts.kernel_scratch.cuda_sorts import NotKnown, multiprocessors
from memgraph.facts.kernel_scratch.operands import Call

_THREADS = 512  # threads of a block at most, divided by the columns of a thread
_WARP = 32
_FEW_ROWS, _MANY_ROWS = 16, 256  # rows of one thread
_INDEXED = 2**31  # bytes; a larger tensor is summed up in parts


def over_rows(call: Call) -> int:
    """Bytes of a sum of a float32 matrix without gaps over its first dimension.  Raises NotKnown for any other sum."""
    given, dims = call.named["self"], call.named["dim"]
    if len(given.size) != 2 or list(dims or ()) != [0] or given.dtype != torch.float32 or not given.dense((0, 1)):
        raise NotKnown("sums over other dimensions than the rows")
    rows, columns = given.size
    if given.nbytes >= _INDEXED:
        raise NotKnown("sums of 2 GiB and more")
    together = next(count for count in (4, 2, 1) if columns % count == 0)
    width, height = _block(columns // together, rows, _THREADS // together)
    each = rows
    if each >= min(height * _FEW_ROWS, _MANY_ROWS):  # the block's threads share the rows, too
        each = -(-rows // height)
        grid = -(-(columns // together) // width)
        places = multiprocessors() * (_threads() // (width * height))
        if each >= _MANY_ROWS and grid <= places:
            blocks = max(min(-(-places // grid), -(-each // _FEW_ROWS)), -(-each // _MANY_ROWS))
            return 4 * (columns * blocks * width * together + grid) if blocks > 1 else 0
    return 0


def _block(columns: int, rows: int, threads: int) -> tuple[int, int]:
    """Threads of a block along the columns and along the rows, powers of two."""
    most = [min(threads, 1 << (count.bit_length() - 1)) for count in (columns, rows)]
    height = min(most[1], threads // min(most[0], _WARP))
    return min(most[0], threads // height), height


def _threads() -> int:
    """How many threads a multiprocessor of this process's device holds; a Hopper's where there is none."""
    if not torch.cuda.is_available():
        return 2048
    return torch.cuda.get_device_properties().max_threads_per_multi_processor
