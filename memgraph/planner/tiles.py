"""Which regions to run in shards, and in how many: chosen from what stands at the peak.

Start without tiles. While the plan does not fit, or costs time, ask which group of equal regions holds the most bytes
at the peak, and give it as many shards as bring these bytes into what room is left. A shard keeps a least number of
tokens: a product of few rows costs as much as one of more, since the weights are read for each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from memgraph.facts.actions import Origin

# The fewest rows of a shard. On a CPU a head and its loss took 1.04, 1.11 and 1.07 of Inductor's time in shards of 512,
# 256 and 128 rows (docs/decisions/0007); on CUDA nothing was measured.
LEAST_ROWS = {"cpu": 128, "cuda": 1024}
# What holds less of the peak than this is not worth a tile.
LEAST_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Group:
    """Equal regions.  regions: their places among all.  tokens: of each.  most: shards that it may have.

    fixed: the number of shards where the planner may not choose it, else None.  origin: who asks for shards, if not
    the planner.
    """

    kind: str
    module: str
    tokens: int
    regions: tuple[int, ...]
    most: int
    fixed: int | None = None
    origin: Origin | None = None


Shards = tuple[int, ...]  # by group; 1: untiled


def first(groups: Sequence[Group]) -> Shards:
    """What is tiled before anything is chosen."""
    return tuple(group.fixed or 1 for group in groups)


def most_shards(tokens: int, device: str) -> int:
    return max(1, tokens // LEAST_ROWS.get(device, LEAST_ROWS["cuda"]))


def more(groups: Sequence[Group], shards: Shards, standing: Mapping[int, int], peak: int, limit: int) -> Shards | None:
    """The next thing to try; None where nothing that is tiled further would lower the peak.

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
    times = math.ceil(standing[n] / room) if room > 0 else 8
    wanted = 2 ** math.ceil(math.log2(max(2, min(8, times))))
    return tuple(min(groups[i].most, count * wanted) if i == n else count for i, count in enumerate(shards))
