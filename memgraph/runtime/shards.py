"""What a tiled graph calls to put shards together: outputs written into place, gradients summed in float32.

    shard_whole(first, dim, length) -> whole            room for all shards along a dimension, the first one in it
    shard_put(whole, part, dim, start) -> whole         the same with one more shard in it
    shard_product(left, right) -> sum                   left @ right, summed in float32 (float64 stays)
    shard_add(sum, left, right) -> sum                  sum + left @ right
    poison(size, dtype, device) -> tensor               not-a-number everywhere, in the memory of one number

In a graph all are functional; Inductor runs `shard_put_` and `shard_add_`, which write into their first argument: the
tile pass makes chains of them in which nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Of temporary values in float32, where factors are of a shorter type.
BLOCK = 16 << 20
_library = torch.library.Library("memgraph", "FRAGMENT")


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums over shards are kept in."""
    if not dtype.is_floating_point:
        return dtype
    return torch.promote_types(dtype, torch.float32)


def shard_whole(first: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    whole = _room(first, dim, length)
    whole.narrow(dim, 0, first.shape[dim]).copy_(first)
    return whole


def shard_put_(whole: torch.Tensor, part: torch.Tensor, dim: int, start: int) -> None:
    whole.narrow(dim, start, part.shape[dim]).copy_(part)


def shard_put(whole: torch.Tensor, part: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    whole = whole.clone()
    shard_put_(whole, part, dim, start)
    return whole


def shard_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if accumulator(left.dtype) == left.dtype:
        return torch.mm(left, right)
    total = left.new_zeros((left.shape[0], right.shape[1]), dtype=accumulator(left.dtype))
    shard_add_(total, left, right)
    return total


def shard_add_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
        return
    # A few rows of the sum at a time: at once, the product of a large head would take as much again as its gradient.
    rows = _rows(left.shape, right.shape, left.is_cuda)
    if not left.is_cuda:
        right = right.to(total.dtype)
    for part, factor in zip(total.split(rows), left.split(rows), strict=True):
        if left.is_cuda:
            part.add_(torch.mm(factor, right, out_dtype=total.dtype))
        else:
            part.addmm_(factor.to(total.dtype), right)


def scratch(left: Sequence[int], right: Sequence[int], dtype: torch.dtype, cuda: bool) -> int:
    """Bytes that `shard_add_` holds beyond its arguments, for the shapes of its factors."""
    wide = accumulator(dtype)
    if wide == dtype:
        return 0
    rows = min(_rows(left, right, cuda), left[0])
    if cuda:
        return rows * right[1] * wide.itemsize
    return (rows * left[1] + right[0] * right[1]) * wide.itemsize


def _rows(left: Sequence[int], right: Sequence[int], cuda: bool) -> int:
    """Rows of a sum whose product (on CUDA) or left factor (on the CPU) in float32 takes at most BLOCK bytes."""
    return max(1, BLOCK // (4 * (right[1] if cuda else left[1])))


def shard_add(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    total = total.clone()
    shard_add_(total, left, right)
    return total


def poison(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((), float("nan"), dtype=dtype, device=device).expand(size)


def _room(first: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    return first.new_empty([length if n == dim else size for n, size in enumerate(first.shape)])


def _product_like(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty((left.shape[0], right.shape[1]), dtype=accumulator(left.dtype))


for _schema, _run, _fake in (
    ("shard_whole(Tensor first, int dim, int length) -> Tensor", shard_whole, _room),
    ("shard_put(Tensor whole, Tensor part, int dim, int start) -> Tensor", shard_put, lambda whole, *_: whole.clone()),
    ("shard_put_(Tensor(a!) whole, Tensor part, int dim, int start) -> ()", shard_put_, lambda *_: None),
    ("shard_product(Tensor left, Tensor right) -> Tensor", shard_product, _product_like),
    ("shard_add(Tensor total, Tensor left, Tensor right) -> Tensor", shard_add, lambda total, *_: total.clone()),
    ("shard_add_(Tensor(a!) total, Tensor left, Tensor right) -> ()", shard_add_, lambda *_: None),
    ("poison(int[] size, ScalarType dtype, Device device) -> Tensor", poison, None),
):
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"memgraph::{_name}", _fake or _run, lib=_library)
