"""Scratch of ATen's and the libraries' kernels on CUDA, as their host code takes it from torch's allocator.

Each rule is exact: tests/simulated/test_kernel_scratch.py holds it against the host code on the simulated device,
operator by operator. Only cuDNN's attention has it from an execution plan that is made on the card: its rules are what
an H100 showed (cuDNN 9.19), and count where no card can be asked. A rule returns bytes, and raises cuda_sorts.NotKnown
for a call that it does not cover. The workspaces of cuBLAS are a part of it where each product takes one and gives it
back (cuda_products.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from memgraph.base.sizes import round_up
from memgraph.facts.kernel_scratch import cuda_products, cuda_sorts, cuda_sums
from memgraph.facts.kernel_scratch.operands import Call


def flash_forward(call: Call) -> int:
    """Few queries do not fill the card, so the keys are split: each part keeps its own output and a number a row, in
    float32."""
    query, key = call.named["query"], call.named["key"]
    batch, heads, length, width = query.size
    if call.named["dropout_p"]:  # never split then; a seed and an offset
        return 16
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    splits = _parts(batch * heads * -(-length // 64), -(-key.size[2] // block), 2 * cuda_sorts.multiprocessors())
    return 4 * splits * batch * heads * length * (_filled(width) + 1) if splits > 1 else 0


def _parts(blocks: int, key_blocks: int, places: int) -> int:
    """Into how many parts flash attention splits the keys: the fewest that use the card almost as well as any number.

    blocks: of queries, over all heads.  places: blocks that the card runs at once.
    """
    if blocks >= 0.8 * places:
        return 1
    numbers = [1]  # other numbers of parts would leave some of them empty
    numbers += [
        n for n in range(2, min(128, places, key_blocks) + 1) if -(-key_blocks // n) != -(-key_blocks // (n - 1))
    ]
    used = {n: (blocks * n / places) / -(-blocks * n // places) for n in numbers}
    return next(n for n in numbers if used[n] >= 0.85 * max(used.values()))


def flash_backward(call: Call) -> int:
    """The query's gradient in float32, one more float32 for each row; with grouped heads, keys' and values' gradients
    for every head of the queries. A gradient that does not lie as [batch, tokens, heads, features] is copied."""
    gradient, query, key = call.named["grad_out"], call.named["query"], call.named["key"]
    batch, heads, length, width = query.size
    rows = batch * heads * round_up(length, 128)
    expanded = 2 * batch * heads * key.size[2] * round_up(width, 8) * query.dtype.itemsize
    copy = 0 if gradient.dense((0, 2, 1, 3)) else gradient.nbytes
    sums = rows * (_filled(width) * _splits(batch * heads) + 1)
    return 4 * sums + (expanded if key.size[1] != heads else 0) + copy


def _filled(width: int) -> int:
    """Features of a head in the kernel's own sums."""
    return round_up(width, 32 if width <= 128 else 64)


def _splits(heads: int) -> int:
    """How many sums of the query's gradient flash attention keeps: one; under torch's deterministic algorithms one for
    each block of the grid, so that each is added to in the same order every time."""
    if not torch.are_deterministic_algorithms_enabled():
        return 1
    return -(-cuda_sorts.multiprocessors() // heads)


def efficient_forward(call: Call) -> int:
    """Half types sum up in float32 where a head's values do not fit into registers."""
    query, value = call.named["query"], call.named["value"]
    batch, heads, length, _ = query.size
    width = value.size[3]
    return 4 * batch * heads * length * width if width > 128 and query.dtype.itemsize < 4 else 0


def efficient_backward(call: Call) -> int:
    """A number for each row, and sums that blocks of the grid share; float32 gets the rows' numbers as a product first.

    The gradient is wanted as [batch, tokens, heads, features], and one that lies otherwise is copied.
    """
    gradient, query, key, value = (call.named[name] for name in ("grad_out_", "query", "key", "value"))
    batch, heads, length, width = query.size
    rows = batch * heads * length
    half = query.dtype.itemsize < 4
    tile_rows, tile_columns, sums = _tile(half, max(width, value.size[3]), bool(call.named["dropout_p"]))
    # A tile of the query's gradient has a lock and a count before its numbers.
    tiles = -(-length // tile_rows) * -(-width // tile_columns) * (tile_rows * tile_columns + 4)
    if sums:
        tiles += (
            _splits_of_keys(key.size[2], batch * heads) * 64 * (round_up(width, 128) + round_up(value.size[3], 128))
        )
    copy = 0 if gradient.dense((0, 2, 1, 3)) else gradient.nbytes
    shared = 4 * rows + 4 * batch * heads * tiles
    product = 0 if half else 4 * rows * value.size[3] + 8 * rows
    return copy + max(shared, product)


def _tile(half: bool, width: int, dropout: bool) -> tuple[int, int, bool]:
    """Rows and columns of a tile, and whether keys' and values' gradients are summed up in float32 beside them.

    width: the widest of the heads' features. The largest tile is taken that fits into a multiprocessor.
    """
    if width <= 64:
        return 64, 64, False
    if _shared_memory() < 128 * 1024:  # capability 8.6, 8.9 and 12
        if not half:
            return 64, 64, False
        return (128, 64, width > 128) if width > 128 or (width <= 96 and not dropout) else (64, 64, True)
    if half and width <= 128:
        return 128, 128, False
    return 128, 64, half


def _shared_memory() -> int:
    """Bytes that a block of this process's device can have; a Hopper's where there is none."""
    if not torch.cuda.is_available():
        return 227 * 1024
    return torch.cuda.get_device_properties().shared_memory_per_block_optin


def _splits_of_keys(keys: int, heads: int) -> int:
    return max(1, min(-(-keys // 64), 200 // heads))


def cudnn_forward(call: Call) -> int:
    """Seen on an H100, whatever the sizes, the mask and the dropout."""
    _as_many_keys_as_queries(call)
    return 256


def cudnn_backward(call: Call) -> int:
    """Seen on an H100: the query's gradient in float32, one more float32 for each row, and what the forward takes."""
    _as_many_keys_as_queries(call)
    batch, heads, length, width = call.named["query"].size
    return 4 * batch * heads * length * (width + 1) + 256


def _as_many_keys_as_queries(call: Call) -> None:
    """Raises cuda_sorts.NotKnown where heads of queries share those of keys."""
    if call.named["key"].size[1] != call.named["query"].size[1]:  # tests of these failed on an H100, unseen why
        raise cuda_sorts.NotKnown("cuDNN's kernels with grouped heads are known to the card alone")


def card() -> str:
    """The current card and its cuDNN, as text."""
    return f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}"


def _nothing(call: Call) -> int:
    return 0


RULES: dict[str, Callable[[Call], int]] = {
    "aten::_scaled_dot_product_flash_attention": flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": flash_backward,
    "aten::_scaled_dot_product_efficient_attention": efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten::sort": cuda_sorts.sort,
    "aten::cumsum": cuda_sorts.cumsum,
    "aten::index_put": cuda_sorts.index_put,
    "aten::index_put_": cuda_sorts.index_put,
    "aten::_grouped_mm": cuda_sorts.grouped_product,
    **dict.fromkeys(("aten::sum", "aten::amax", "aten::amin"), cuda_sums.over_rows),
    **dict.fromkeys(cuda_products.NAMES, cuda_products.workspace),
    **dict.fromkeys((f"aten::{name}" for name in "copy_ fill_ zero_ as_strided randint".split()), _nothing),
}
"""By the operator's name: bytes that a call holds beyond its outputs."""
AS_THE_CARD_CHOOSES = frozenset(name for name in RULES if "cudnn" in name)
"""Operators of which another card, or another version of its library, may take something else."""


def expected(call: Call) -> int | None:
    """What a rule says; None where it does not cover the call."""
    try:
        return RULES[call.name](call)
    except cuda_sorts.NotKnown:
        return None
