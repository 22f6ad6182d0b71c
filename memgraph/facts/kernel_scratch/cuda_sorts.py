"""Scratch of kernels on CUDA that sort, scan or add at indices, and of grouped products: more rules for cuda.py.

The sorts are radix sorts of 8 bits a pass that look back over tiles. Keys and indices change between two memories, the
outputs and one more of each, unless one pass is enough.
"""

from __future__ import annotations

import math

import torch

from memgraph.base.sizes import round_up
from memgraph.facts.kernel_scratch.operands import Call, Operand

_ALIGNED = 256  # bytes
_ALLOCATION = 255  # bytes by which a temporary memory is larger, so that its parts can be aligned
_BINS = 256
# Keys of one tile, by the card's capability and bytes of a key, with an index of 8 bytes beside each. (An A100 sorts
# shorter keys by another kernel.)
_TILE = {(9, 0): {1: 3456, 2: 5632, 4: 5376, 8: 4608}, (8, 0): {4: 3072, 8: 3840}}
_ONE_TILE = 2304  # so many indices are sorted by a kernel without scratch
_SMALL_SORT = 4096  # rows up to this length are sorted within one block
_LONG_SORT = 1_000_000  # rows from this length on are sorted one by one
_MANY_ROWS = 128
_SCANNED = {4: 1920, 8: 896}  # numbers of one tile of a scan, by bytes


class NotKnown(ValueError):
    """A call that no rule covers."""


def sort(call: Call) -> int:
    """Short rows need an index for each place. Longer ones get memories to change to, and where there are several, but
    not many, they are sorted as one: by value, then by row."""
    given, dim = call.named["self"], call.named["dim"]
    length = given.size[dim] if given.size else 1
    if length <= _SMALL_SORT:
        return 8 * length
    if not given.dense([d for d in range(len(given.size)) if d != dim % len(given.size)] + [dim]):
        raise NotKnown("rows that do not lie next to each other")
    key, count = given.dtype.itemsize, math.prod(given.size)
    rows = count // length
    if rows == 1 or length >= _LONG_SORT:
        return 8 * length + _radix_sort(length, key, key)
    count = min(count, (2**31 - 1) // length * length)  # more are sorted in parts
    if rows >= _MANY_ROWS:
        return 8 * count + round_up(key * count, _ALIGNED) + round_up(8 * count, _ALIGNED) + _ALLOCATION
    return (16 + key) * count + _radix_sort(count, key, key)


def _radix_sort(count: int, key: int, passes: int) -> int:
    """Bytes of the temporary memory.  key: bytes of a key.  passes: over the keys, 8 bits each."""
    tile = _TILE.get(_capability(), {}).get(key)
    if tile is None:
        raise NotKnown(f"sorts of keys of {key} bytes on this card")
    changed = 0 if passes == 1 else round_up(key * count, _ALIGNED) + round_up(8 * count, _ALIGNED)
    looked_up = 4 * _BINS * -(-count // tile)
    return changed + 8 * _BINS * passes + looked_up + _ALIGNED + _ALLOCATION


def cumsum(call: Call) -> int:
    """Narrower integers are copied as what they are summed up in; a scan over all numbers has a word for each tile."""
    given, dim, made = call.named["self"], call.named["dim"], call.outputs
    count, size = math.prod(given.size), made.dtype.itemsize
    copy = 0 if given.dtype == made.dtype else size * count
    if not given.size or count != given.size[dim]:
        return copy
    if size not in _SCANNED or _capability() not in _TILE:
        raise NotKnown(f"a scan of {made.dtype} on this card")
    tiles = -(-count // _SCANNED[size])
    return copy + round_up(2 * size * (tiles + 32), _ALIGNED) + _ALIGNED + _ALLOCATION


def index_put(call: Call) -> int:
    """What is added at the same index is brought together first: indices are sorted, by as many bits as they have."""
    target, indices, values = (call.named[name] for name in ("self", "indices", "values"))
    if torch.are_deterministic_algorithms_enabled():
        raise NotKnown("deterministic algorithms")
    if not call.named["accumulate"]:
        return 0
    given = [index for index in indices if index is not None]
    if len(given) != 1 or indices[0] is None or given[0].dtype == torch.bool or not _contiguous(target):
        raise NotKnown("other indices than one of the first dimension")
    (index,) = given
    count, shape = math.prod(index.size), (*index.size, *target.size[1:])
    copy = 0 if values.size == shape and _contiguous(values) else math.prod(shape) * target.dtype.itemsize
    if count <= _ONE_TILE:
        return copy + 32 * count + 1
    passes = -(-max(1, (target.size[0] - 1).bit_length()) // 8)
    return copy + 32 * count + _radix_sort(count, 8, passes)


def _contiguous(value: Operand) -> bool:
    return value.dense(range(len(value.size)))


def grouped_product(call: Call) -> int:
    """Where one kernel of a Hopper makes all: descriptions for each multiprocessor, addresses for each product."""
    left, right, offsets = (call.named[name] for name in ("self", "mat2", "offs"))
    major, _ = _capability()
    if left.dtype != torch.bfloat16 or major not in (9, 10):
        return 0  # one product after the other
    if major == 10:
        raise NotKnown("grouped products on this card")
    groups = (left if len(left.size) == 3 else right).size[0] if offsets is None else offsets.size[0]
    return 512 * multiprocessors() + 60 * groups


def _capability() -> tuple[int, int]:
    """The compute capability of this process's device; a Hopper's where there is none."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)


def multiprocessors() -> int:
    """How many multiprocessors this process's device has; a Hopper's number where there is none."""
    return torch.cuda.get_device_properties().multi_processor_count if torch.cuda.is_available() else 132
