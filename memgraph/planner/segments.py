"""Where to cut a chain of recomputation: the borders that reach a peak while each value is computed again at most once.

    regions    0   1   2   3   4   5   6   7   8            a border before region r: what later regions read of earlier
    borders        |           |       |   |                ones is held there and is never computed again
    segments   [ 0 .. 0 ][ 1 .. 3 ]...

Problem: the backward computes a segment's values again, all of them, before it walks back through the segment. So the
device holds then: the borders up to this segment, what the segment has computed, and what the operator at hand needs
beside that. As the backward moves on, borders are given up; early segments may be longer than late ones. Equal segments
of a chain of n values need about 2 * sqrt(n) of them, growing ones sqrt(2 * n) (Chen et al., "Training deep nets with
sublinear memory cost", 2016, has the equal ones).

Why not a library: the problem is a shortest path with a bottleneck, ten lines.

Algorithm: under a limit on the peak, the least bytes held at a border depend on the borders before it only through the
bytes held there (fewer is never worse), so they are found border by border. The lowest limit that works is found by
bisection. The figures come from the sweep of one candidate that holds every border; the planner sweeps each choice
again, so an error here costs quality and never a promise.

Oracle: tests/planner/test_segments.py tries every set of borders on random costs, and compares chains of up to 256
values with dynamic programming over all of theirs.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate

BISECTIONS = 40


@dataclasses.dataclass(frozen=True)
class SegmentCosts:
    """Bytes, by two regions."""

    crossing: np.ndarray
    """[i, j]: bytes of values that regions i to j - 1 make and that region j or a later one reads."""
    peak: np.ndarray
    """[i, j]: the highest level during the backward of the segment [i, j], above what is held at the border i."""

    def borders(self, limit: float) -> tuple[int, ...] | None:
        """The first regions of all segments but the first, if the peak may reach `limit`; None if none keep it."""
        count = len(self.crossing)
        held = np.full(count, np.inf)  # the least bytes held when the border before a region has been passed
        held[0] = 0.0
        before = np.zeros(count, dtype=int)
        for region in range(1, count):
            fits = held[:region] + self.peak[:region, region - 1] <= limit
            reached = np.where(fits, held[:region] + self.crossing[:region, region], np.inf)
            before[region] = int(np.argmin(reached))
            held[region] = reached[before[region]]
        ends = np.flatnonzero(held + self.peak[:, count - 1] <= limit)
        if not len(ends):
            return None
        border = int(ends[np.argmin(held[ends])])
        found = []
        while border:
            found.append(border)
            border = int(before[border])
        return tuple(reversed(found))

    def lowest(self) -> float:
        """The lowest peak that any borders reach, in bytes."""
        low, high = 0.0, float(self.peak[0, -1] + self.crossing.max(initial=0.0))
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if self.borders(middle) is None:
                low = middle
            else:
                high = middle
        return high


def border_values(facts: JointFacts, borders: tuple[int, ...]) -> frozenset[int]:
    """Values that cross a border, but for those that fused operators alone make of others of them and of inputs.

    They are never computed again.

    Where an operator reads several values of earlier segments that are larger than its own (a list of all states of a
    recurrent network, stacked at the end), its output is held instead of them.
    """
    values, kept = facts.values, set()
    crossing = _crossing(facts, borders)
    # Values that fused operators alone make of inputs and of kept values.
    easy = [value.kind in ("primal", "tangent") for value in values]
    for i in facts.forward:
        value = values[i]
        easy[i] = value.kind in ("view", "pointwise", "symbol") and all(easy[j] for j in value.inputs)
        if i in crossing and not easy[i] and value.savable and value.kind != "view":
            kept.add(i)
            easy[i] = True
    return frozenset(kept)


def _crossing(facts: JointFacts, borders: tuple[int, ...]) -> set[int]:
    """Values that operators of later segments read; the outputs of these operators instead, if those are smaller."""
    values, forward = facts.values, set(facts.forward)
    segment = np.searchsorted(borders, np.arange(len(facts.region_names)), side="right")
    crossing: set[int] = set()
    for i in facts.forward:
        earlier = set()
        for read in values[i].inputs:
            if read in forward and segment[values[read].region] != segment[values[i].region]:
                root = values[read].storage
                earlier.add(root if values[root].savable else read)
        gathers = len(earlier) > 1 and values[i].savable and values[i].kind != "view"
        if gathers and sum(values[j].bytes for j in earlier) >= values[i].bytes:
            crossing.add(i)
        else:
            crossing |= earlier
    return crossing


def segment_costs(facts: JointFacts, every: Candidate) -> SegmentCosts:
    """The costs of segments, read off the sweep of a candidate that holds every border."""
    values, count = facts.values, max(1, len(facts.region_names))
    last = _last_readers(facts)
    born = np.zeros((count, count + 1))  # [region that makes it, last region that reads it]: bytes held
    for storage in {values[i].storage for i in every.schedule.saved}:
        value = values[storage]
        if value.kind not in ("primal", "tangent"):
            born[value.region, max(last.get(storage, 0), value.region)] += value.bytes
    again, beside = _backward_by_region(facts, every, born.sum(axis=1))
    made = np.cumsum(born.sum(axis=1) + again)
    peak = np.full((count, count), -np.inf)
    crossing = np.zeros((count, count))
    # later[b, j]: bytes that region b makes and region j or a later one reads.
    later = np.cumsum(born[:, ::-1], axis=1)[:, ::-1]
    for first in range(count):
        start = made[first - 1] if first else 0.0
        levels = made[first:] - start - again[first:] + beside[first:]
        peak[first, first:] = np.maximum.accumulate(levels)
        crossing[first, first + 1 :] = [later[first:j, j].sum() for j in range(first + 1, count)]
    return SegmentCosts(crossing, peak)


def _last_readers(facts: JointFacts) -> dict[int, int]:
    """The last region in which an operator of the forward reads a storage."""
    last: dict[int, int] = {}
    for i in facts.forward:
        for read in facts.values[i].inputs:
            storage = facts.values[read].storage
            last[storage] = max(last.get(storage, 0), facts.values[i].region)
    return last


def _backward_by_region(facts: JointFacts, every: Candidate, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By region: the recomputed bytes that its backward reads, and its highest level less the bytes held up to it."""
    program, swept, values = every.schedule.backward, every.backward, facts.values
    ours = set(facts.backward)
    again = np.zeros(len(held))
    level = np.zeros(len(held))
    read_back = {swept.storage_of[s] for slot, v in enumerate(program.values) if v in ours for s in program.reads[slot]}
    region, carried = 0, every.carried
    for slot in range(len(program.values) - 1, program.inputs - 1, -1):
        value = program.values[slot]
        if value in ours:
            region = values[value].region
        level[region] = max(level[region], carried + swept.usage[slot])
        if value not in ours and slot in swept.births and slot in read_back and values[value].region == region:
            again[region] += swept.bytes[slot]
    return again, np.maximum(level - np.cumsum(held), 0.0)
