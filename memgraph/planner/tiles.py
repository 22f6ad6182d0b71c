"""Which regions to run in shards, and in how many: chosen from what stands at the peak.

Problem: a region in n shards holds about an n-th of its widest values, but each shard reads the weights again. How many
shards does each group of equal regions need, so that the plan fits?

Why not a library: each answer is judged by planning the tiled graph anew, so few questions may be asked, not many.

Algorithm: start without tiles. While the plan does not fit, or costs time, find the group that holds the most bytes at
the peak, and give it as many shards as bring these bytes into the room that is left. A shard keeps a least number of
tokens: a product of few rows costs as much as one of more, since the weights are read for each.

Oracle: the table of peaks, limits and shards in tests/planner/test_tiles.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memgraph.facts.actions import Origin
from memgraph.facts.masks.reach import ALL

# The fewest rows of a shard. On a CPU a head and its loss took 1.04, 1.11 and 1.07 of Inductor's time in shards of 512,
# 256 and 128 rows (docs/decisions/0007); on CUDA nothing was measured.
LEAST_ROWS = {"cpu": 128, "cuda": 1024}
# Attention whose queries read a part of the keys (docs/decisions/0015-masks.md, (8)): so many shards are as long as a
# window, where these leave at most this share of the pairs; and so many a sequence of at least so many tokens has where
# queries read all keys on one side.
WINDOWS = 2
WORTH = 0.75
ONE_SIDED = 4
LONG = 4096
# Shards of several lengths of keys run as many bodies, each of which is compiled: so many at most, and where they have
# at most this share of the pairs of queries and keys.
LENGTHS = 4
WORTH_BODIES = 0.8
# Kernels of attention read rows of a mask in vectors: those that a shard makes begin where whole ones would.
VECTOR = 16
# A group that holds a smaller share of the peak is not worth a tile.
LEAST_SHARE = 0.05
# One step multiplies a group's shards by so much at most: what stands at the peak is known for the present number only.
MOST_TIMES = 8


@dataclasses.dataclass(frozen=True)
class Group:
    """Equal regions, which get the same number of shards."""

    kind: str
    """Of the regions: "mlp", "loss" or "attention"."""

    module: str
    """The module path of the first region."""

    tokens: int
    """Of each region."""

    regions: tuple[int, ...]
    """Their places among all regions of the graph."""

    most: int
    """The most shards that the planner may choose."""

    least: int = 1
    """The fewest shards that the planner may choose."""

    fixed: int | None = None
    """The number of shards where the planner may not choose it."""

    origin: Origin | None = None
    """Who asks for shards; None for the planner."""


Shards = tuple[int, ...]  # by group; 1: untiled


def starting_shards(groups: Sequence[Group]) -> Shards:
    """The shards before the planner has chosen any."""
    return tuple(group.fixed or group.least for group in groups)


def fastest_shards(tokens: int, before: int, after: int, device: str) -> int:
    """In how many shards attention takes least time whose queries read so many keys before and after their own.

    The queries of a shard look at all keys that one of them reads: of a window, shards that are shorter than it lose
    little. Where queries read all keys on one side, each of a few shards has as many more as it is long, and runs
    another body, which is compiled for it: sequences have to be long for that. 1 where too few pairs are left out.
    """
    read = before + 1 + after
    rows = max(least_rows(device), math.ceil(read / WINDOWS))
    if rows + read <= WORTH * tokens:
        return math.ceil(tokens / rows)
    one_sided = min(before, after) <= tokens // ONE_SIDED
    return ONE_SIDED if one_sided and tokens >= LONG and most_shards(tokens, device) >= ONE_SIDED else 1


def most_shards(tokens: int, device: str) -> int:
    """How many shards so many tokens may have at the most."""
    return max(1, tokens // least_rows(device))


def least_rows(device: str) -> int:
    """The fewest tokens of a shard that the planner chooses."""
    return LEAST_ROWS.get(device, LEAST_ROWS["cuda"])


def keys_of_shards(rows: Sequence[int], before: int, after: int, multiple: int = 1) -> tuple[int, ...]:
    """How many keys each shard is given whose queries read so many keys before and after their own; empty for all.

    rows: the queries of each shard.  multiple: each shard but the last has a multiple of so many queries.
    All shards of a window are given as many as the one that reads most: they run one body.
    """
    keys, vector = sum(rows), max(VECTOR, multiple)
    ends = list(itertools.accumulate(rows))
    needed = [min(keys, end + after) - max(0, end - count - before) for end, count in zip(ends, rows, strict=True)]
    most = max(needed)
    step = math.ceil(most / LENGTHS)
    few = [min(most, math.ceil(length / step) * step) for length in needed]
    pairs = sum(length * count for length, count in zip(few, rows, strict=True))
    lengths = few if pairs <= WORTH_BODIES * most * keys else [most] * len(rows)
    lengths = [keys - (keys - length) // vector * vector for length in lengths]
    return tuple(lengths) if min(lengths) < keys else ()


def keys_at_any_length(rows: Sequence[Any], before: int, after: int, multiple: int = 1) -> tuple[Any, ...]:
    """As `keys_of_shards`, where the length is a symbol: how many keys each shard is given, as expressions of it.

    rows: the queries of each shard.
    Where queries read all keys on one side, shards next to one another are given as many as the one of them that needs
    most, so that there are a few lengths; else all are given as many.
    """
    keys, several, ends = sum(rows), len(rows), list(itertools.accumulate(rows))
    longest = rows[-1]
    if multiple > 1:  # a shard has a block more than another, and the last less than that where they are a power of 2
        block_more = -(-keys // (several * multiple)) * multiple
        longest = block_more if several.bit_count() == 1 else torch.sym_max(block_more, longest)
    unread: list[Any] = []  # by shard, of how many keys it is known that none is read
    for n in range(several):
        members = [other for other in range(several) if other * LENGTHS // several == n * LENGTHS // several]
        if before >= ALL:
            last = members[-1]
            unread.append(0 if last == several - 1 else keys - ends[last] - after)
        elif after >= ALL:
            unread.append(ends[members[0] - 1] - before if members[0] else 0)
        else:
            unread.append(keys - longest - before - after)
    vector = max(VECTOR, multiple)
    sure = after == 0 and before >= ALL  # these are never below 0
    return tuple(keys - (left if sure else torch.sym_max(0, left)) // vector * vector for left in unread)


def next_shards(
    groups: Sequence[Group], shards: Shards, standing: Mapping[int, int], peak: int, limit: int
) -> Shards | None:
    """The shards to try after `shards`; None if more shards of no group would lower the peak.

    standing: by group, the bytes of its values among those that make the peak.  limit: bytes that the step may take.
    """
    free = [
        n
        for n, group in enumerate(groups)
        if group.fixed is None and shards[n] < group.most and standing.get(n, 0) >= LEAST_SHARE * peak
    ]
    if not free:
        return None
    n = max(free, key=lambda place: standing[place])
    room = limit - (peak - standing[n])
    times = math.ceil(standing[n] / room) if room > 0 else MOST_TIMES
    wanted = 2 ** math.ceil(math.log2(max(2, min(MOST_TIMES, times))))
    return tuple(min(groups[i].most, count * wanted) if i == n else count for i, count in enumerate(shards))
