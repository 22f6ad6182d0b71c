"""The keys that each shard of the queries is given, where queries do not read them all.

    128 tokens, shards of 32
    16 keys before its own, 48 each:            keys 0 to 48, 16 to 64, 48 to 96, 80 to 128      one body
    all keys before its own, 32, 64, 96, 128:   keys 0 to 32, 0 to 64, 0 to 96, 0 to 128         a body each

How many each is given, the plan says; they end with the last one that the shard reads, or with the last one of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.masks.reach import ALL
from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.region import TokenRegion
from memgraph.passes.insert import call, size
from memgraph.passes.tiles.body import Shard, Size

aten = torch.ops.aten


def with_keys(counts: Sequence[Size], region: TokenRegion, lengths: Sequence[Size]) -> list[Shard]:
    """The shards of so many tokens each, with the keys that each is given.

    lengths: how many keys each is given; empty where each is given all.
    """
    if region.reach is None or not lengths:
        return [Shard(count) for count in counts]
    found, read, keys = [], 0, sum(counts)
    for n, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        read += count
        end = read if region.reach.after == 0 else torch.sym_min(keys, read + region.reach.after)
        # What is known at any length is written so: the first shard begins with the first key.
        start = 0 if n == 0 or region.reach.before >= ALL else torch.sym_max(0, end - length)
        found.append(Shard(count, start, keys - length))
    return found


def cut_keys(
    graph: fx.Graph, mode: Any, parts: Mapping[str, Iterator[fx.Node]], region: TokenRegion, shard: Shard
) -> Iterator[tuple[str, fx.Node]]:
    """The next part of each input, of its keys those of a shard."""
    for name, part in parts.items():
        node, dim = next(part), region.keys.get(name)
        if dim is not None and not shard.has_all_keys:
            length = shape_of(node)[dim] - shard.left_out
            told = (size(graph, mode, shard.start), size(graph, mode, length))
            node = call(graph, mode, torch.ops.memgraph.shard_keys.default, node, dim, *told)
        yield name, node


def add_keys(
    graph: fx.Graph, mode: Any, before: fx.Node | None, part: fx.Node, order: Sequence[int], dim: int, shard: Shard
) -> fx.Node:
    """The sum over the shards of a gradient of keys, with one shard's in it, in place.

    order: dimensions as the sum has them.  dim: of the gradient, that of the keys.
    """
    part = call(graph, mode, aten.permute.default, part, order) if order else part
    dim = order.index(dim) if order else dim
    start = size(graph, mode, shard.start)
    if before is not None:
        return call(graph, mode, torch.ops.memgraph.shard_sum.default, before, part, dim, start)
    length = size(graph, mode, shape_of(part)[dim] + shard.left_out)
    return call(graph, mode, torch.ops.memgraph.shard_total.default, part, dim, start, length)
