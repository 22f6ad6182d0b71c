"""The keys that each shard of the queries is given, where queries do not read them all.

    128 tokens, shards of 32
    16 keys before its own:     keys 0 to 48, 16 to 64, 48 to 96, 80 to 128      one body
    all keys before its own:    keys 0 to 32, 0 to 64, 0 to 96, 0 to 128         a body each

The first shards of a window have less to read than the others, and are given as much.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.passes.insert import call
from memgraph.passes.tiles.body import Shard, Size
from memgraph.runtime.tile_ops import accumulator

aten = torch.ops.aten
# Shards of several lengths of keys run as many bodies, each of which is compiled: so many at most, and where they have
# at most this share of the pairs of queries and keys.
LENGTHS = 4
WORTH = 0.8
# Kernels of attention read rows of a mask in vectors: those that a shard makes begin where whole ones would.
_VECTOR = 16


def with_keys(counts: Sequence[Size], region: TokenRegion) -> list[Shard]:
    """The shards of so many tokens each, with the keys that each is given."""
    rows, keys, reach = [count for count in counts if isinstance(count, int)], region.tokens, region.reach
    if reach is None or len(rows) < len(counts):
        return [Shard(count) for count in counts]
    ends = [min(keys, end + reach.after) for end in itertools.accumulate(rows)]
    begins = [max(0, end - count - reach.before) for end, count in zip(itertools.accumulate(rows), rows, strict=True)]
    multiple = max(_VECTOR, region.multiple)
    lengths = _lengths([end - begin for begin, end in zip(begins, ends, strict=True)], rows)
    lengths = [keys - (keys - length) // multiple * multiple for length in lengths]
    return [
        Shard(count, max(0, end - length), keys - length)
        for count, end, length in zip(rows, ends, lengths, strict=True)
    ]


def _lengths(needed: Sequence[int], rows: Sequence[int]) -> list[int]:
    """How many keys each shard is given: the most that one needs, or of few lengths where that saves enough pairs."""
    most = max(needed)
    step = -(-most // LENGTHS)
    few = [min(most, -(-length // step) * step) for length in needed]
    pairs = sum(length * count for length, count in zip(few, rows, strict=True))
    return few if pairs <= WORTH * most * sum(rows) else [most] * len(rows)


def cut_keys(
    graph: fx.Graph, mode: Any, parts: Mapping[str, Iterator[fx.Node]], region: TokenRegion, shard: Shard
) -> Iterator[tuple[str, fx.Node]]:
    """The next part of each input, of its keys those of a shard."""
    for name, part in parts.items():
        node, dim = next(part), region.keys.get(name)
        if dim is not None and shard.left_out:
            end = shard.start + shape_of(node)[dim] - shard.left_out
            node = call(graph, mode, aten.slice.Tensor, node, dim, shard.start, end)
        yield name, node


def add_keys(
    graph: fx.Graph, mode: Any, before: fx.Node | None, part: fx.Node, order: Sequence[int], dim: int, shard: Shard
) -> fx.Node:
    """The sum over the shards of a gradient of keys, with one shard's in it, in place.

    order: dimensions as the sum has them.  dim: of the gradient, that of the keys.
    """
    part = call(graph, mode, aten.permute.default, part, order) if order else part
    dim = order.index(dim) if order else dim
    if before is not None:
        return call(graph, mode, torch.ops.memgraph.shard_sum.default, before, part, dim, shard.start)
    wide = accumulator(part.meta["val"].dtype)
    if wide != part.meta["val"].dtype:
        part = call(graph, mode, torch.ops.prims.convert_element_type.default, part, wide)
    behind = len(shape_of(part)) - 1 - dim
    pads = [*[0] * (2 * behind), shard.start, shard.left_out - shard.start]
    return call(graph, mode, aten.constant_pad_nd.default, part, pads, 0.0)
