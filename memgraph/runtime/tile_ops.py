"""What a tiled graph calls to put shards together: outputs written into place, gradients summed in float32.

    shard_whole(first, dim, length) -> whole            memory for all shards along a dimension, with the first in place
    shard_put(whole, part, dim, start) -> whole         the same with one more shard in it
    shard_product(left, right) -> sum                   left @ right, summed in float32 (float64 stays)
    shard_add(sum, left, right) -> sum                  sum + left @ right
    shard_keys(whole, dim, start, length) -> part       a view of `length` rows along a dimension
    shard_total(first, dim, start, length) -> sum       zeros, in float32, with the first part at its place
    shard_sum(sum, part, dim, start) -> sum             sum + part at its place, whose type may be shorter
    poison(size, dtype, device) -> tensor               not-a-number everywhere, in the memory of one number

`left` is [m, k], `right` [k, n] and `sum` [m, n] of a product; `part` has the shape of the `sum` that it is added to,
or fewer rows along `dim`. `length` is the size of `dim` in `whole`, and `start` is where in it the shard begins.

In a graph all are functional. Inductor runs `shard_put_`, `shard_add_` and `shard_sum_` instead, which write into their
first argument: the tile pass makes chains of them, and nothing else reads that argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# The most bytes of a float32 copy of rows of a left factor, where the CPU multiplies a shorter type.
BLOCK = 16 << 20
_library = torch.library.Library("memgraph", "FRAGMENT")


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a sum over shards: float32 for shorter floating-point types, any other as it is."""
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
    wide = accumulator(left.dtype)
    if wide == left.dtype:
        return torch.mm(left, right)
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=wide)
    total = left.new_zeros((left.shape[0], right.shape[1]), dtype=wide)
    shard_add_(total, left, right)
    return total


def shard_add_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:  # cuBLAS multiplies in the factors' type and adds to the sum in its own
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        # A few rows of the sum at a time: the left factor of a large head has the size of its logits.
        rows, right = _rows(left.shape), right.to(total.dtype)
        for part, factor in zip(total.split(rows), left.split(rows), strict=True):
            part.addmm_(factor.to(total.dtype), right)


def scratch(left: Sequence[int], right: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that `shard_add_` holds beyond its arguments on the CPU, for the shapes of its factors."""
    wide = accumulator(dtype)
    if wide == dtype:
        return 0
    return (min(_rows(left), left[0]) * left[1] + right[0] * right[1]) * wide.itemsize


def _rows(left: Sequence[int]) -> int:
    """Rows of a left factor that take at most BLOCK bytes in float32."""
    return max(1, BLOCK // (4 * max(1, left[1])))


def shard_add(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    total = total.clone()
    shard_add_(total, left, right)
    return total


def shard_sum_(total: torch.Tensor, part: torch.Tensor, dim: int = 0, start: int = 0) -> None:
    total = total.narrow(dim, start, part.shape[dim])
    if total.is_cuda or total.dtype == part.dtype:
        total.add_(part)
        return
    for one, other in zip(total.unbind(), part.unbind(), strict=True):  # the CPU converts what it adds first
        one.add_(other)


def shard_sum(total: torch.Tensor, part: torch.Tensor, dim: int = 0, start: int = 0) -> torch.Tensor:
    total = total.clone()
    shard_sum_(total, part, dim, start)
    return total


def shard_keys(whole: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return whole.narrow(dim, start, length)


def shard_total(first: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    total = _sums(first, dim, start, length).zero_()
    total.narrow(dim, start, first.shape[dim]).copy_(first)
    return total


def sum_scratch(size: Sequence[int], dtype: torch.dtype, cuda: bool) -> int:
    """Bytes that `shard_sum_` holds beyond its arguments, for the shape and the type of its part."""
    wide = accumulator(dtype)
    return 0 if wide == dtype or cuda else math.prod(size[1:]) * wide.itemsize


def poison(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((), float("nan"), dtype=dtype, device=device).expand(size)


def _room(first: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    return first.new_empty([length if n == dim else size for n, size in enumerate(first.shape)])


def _sums(first: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    shape = [length if n == dim else size for n, size in enumerate(first.shape)]
    return first.new_empty(shape, dtype=accumulator(first.dtype))


def _keys(whole: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """As `narrow`, without its questions about a start that is symbolic."""
    sizes = [length if n == dim else size for n, size in enumerate(whole.shape)]
    return whole.as_strided(sizes, whole.stride(), whole.storage_offset() + start * whole.stride(dim))


def _product_like(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty((left.shape[0], right.shape[1]), dtype=accumulator(left.dtype))


def _same(whole: torch.Tensor, *_: object) -> torch.Tensor:
    return whole.clone()


for _schema, _run, _fake in (
    ("shard_whole(Tensor first, int dim, SymInt length) -> Tensor", shard_whole, _room),
    ("shard_put(Tensor whole, Tensor part, int dim, SymInt start) -> Tensor", shard_put, _same),
    ("shard_put_(Tensor(a!) whole, Tensor part, int dim, SymInt start) -> ()", shard_put_, lambda *_: None),
    ("shard_product(Tensor left, Tensor right) -> Tensor", shard_product, _product_like),
    ("shard_add(Tensor total, Tensor left, Tensor right) -> Tensor", shard_add, _same),
    ("shard_add_(Tensor(a!) total, Tensor left, Tensor right) -> ()", shard_add_, lambda *_: None),
    ("shard_keys(Tensor(a) whole, int dim, SymInt start, SymInt length) -> Tensor(a)", shard_keys, _keys),
    ("shard_total(Tensor first, int dim, SymInt start, SymInt length) -> Tensor", shard_total, _sums),
    ("shard_sum(Tensor total, Tensor part, int dim=0, SymInt start=0) -> Tensor", shard_sum, _same),
    ("shard_sum_(Tensor(a!) total, Tensor part, int dim=0, SymInt start=0) -> ()", shard_sum_, lambda *_: None),
    ("poison(int[] size, ScalarType dtype, Device device) -> Tensor", poison, None),
):
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"memgraph::{_name}", _fake or _run, lib=_library)
