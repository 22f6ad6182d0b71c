"""Choose what to save so that the peak stays under a bound at the least recomputation.

1. Uniform: the cut (cut.py) at a handful of prices a byte, each once as it is and once with the inputs of every 1, 2,
   4, ... neighbouring regions held, so that no chain of recomputation is longer than that.
2. Mixed: where one uniform choice is too large and a slower one fits, the first regions take the slower and the others
   the faster; what is saved early lives longest. Bisection finds how many regions must.
3. Polished (polish.py): single values are saved again while there is room.
4. Offloaded (offload.py), where there are tiers: saved values leave the device instead.

Every candidate is scheduled and swept as it stands: the peak is that of the timeline, never the sum of saved bytes.
The pool of candidates does not depend on the bound, so a lower bound finds no plan that a higher one would have missed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator

import numpy as np

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Sweep, sweep
from memgraph.planner.candidate import Candidate, fastest, smallest
from memgraph.planner.cut import SavedSetCut, Uncuttable
from memgraph.planner.offload import Offloader, Tiers
from memgraph.planner.polish import Polish
from memgraph.planner.schedule import Schedule, Unschedulable, make_schedule

MENU = 6
NEIGHBOURS = 2
# From "a byte is worth next to nothing" to "a byte is worth any recomputation", in seconds a byte.
PRICES = (1e-12, 1e-6)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A uniform choice: a price in seconds a byte, and how many regions a chain may span (0: any number)."""

    price: float
    segment: int


class Planner:
    """Plans one joint graph for any bound; what does not depend on the bound is computed once.

    fused: sweep as Inductor allocates, or as the FX interpreter does.  copies: whether a recomputed value may be
    computed anew for each region.  recompute: without it only Inductor's own choice is on offer.
    """

    def __init__(
        self,
        facts: JointFacts,
        *,
        fused: bool = True,
        copies: bool = True,
        recompute: bool = True,
        offload: Tiers | None = None,
    ) -> None:
        self.facts, self.fused, self.copies, self.recompute = facts, fused, copies, recompute
        base = make_schedule(facts, facts.stock_saved, copies)
        self.stock_seconds = self._seconds(base)
        self.stock = dataclasses.replace(self.evaluate(base), stock=True)
        self._seen: dict[frozenset[int], Candidate] = {frozenset(base.saved): self.stock}
        self._boundaries: dict[int, frozenset[int]] = {}
        self._uniform: list[tuple[Entry, Candidate]] | None = None
        self.offloader = Offloader(self, offload) if offload is not None and offload.tiers else None

    def best(self, bound: int | None) -> Candidate | None:
        """The fastest candidate whose peak is at most `bound` bytes above the baseline; None where there is none."""
        stock = self.unplanned()
        if bound is None or stock.peak <= bound:
            return stock
        kept = self._kept(bound) if self.recompute else None
        if self.offloader is None:
            return kept
        if kept is not None:
            kept = self.offloader.pinned(kept)
            kept = kept if kept.peak <= bound else None
        moved = self.offloader.best(bound)
        return min((c for c in (kept, moved) if c is not None), key=fastest, default=None)

    def unplanned(self) -> Candidate:
        """Inductor's own choice, less what the rules send to another tier."""
        return self.stock if self.offloader is None else self.offloader.pinned(self.stock)

    def _kept(self, bound: int) -> Candidate | None:
        """The fastest candidate under the bound by save and recompute alone."""
        uniform = self.uniform()
        fits = [(entry, c) for entry, c in uniform if c.peak <= bound]
        best = min((c for _, c in fits), key=fastest, default=None)
        # Neighbours in time: what is much faster does not fit for long, what is much slower has nothing to give.
        tight = sorted((pair for pair in uniform if pair[1].peak > bound), key=lambda pair: -pair[1].seconds)
        for (entry, slow), (other, fast) in itertools.product(fits[:NEIGHBOURS], tight[:NEIGHBOURS]):
            if fast.seconds < slow.seconds and (best is None or fast.seconds < best.seconds):
                mixed = self._mixed(entry, other, bound)
                if mixed is not None:
                    best = mixed if best is None else min(best, mixed, key=fastest)
        if best is None:
            lowest = self._lowest()
            best = lowest if lowest.peak <= bound else None
        return None if best is None else self._polish(best, bound)

    def smallest(self) -> Candidate:
        """The candidate with the lowest peak that this planner can find."""
        lowest = self._lowest()
        if self.offloader is None:
            return lowest
        found = [self.offloader.pinned(lowest), self.offloader.smallest()]
        return min((candidate for candidate in found if candidate is not None), key=smallest)

    def _lowest(self) -> Candidate:
        pool = [self.stock] + ([c for _, c in self.uniform()] if self.recompute else [])
        lowest = min(pool, key=smallest)
        return self._polish(lowest, None) if self.recompute else lowest

    def evaluate(self, schedule: Schedule) -> Candidate:
        """Sweep a schedule: its peak under the model, and its time."""
        forward = sweep(self.facts.values, schedule.forward, self.fused)
        backward = sweep(self.facts.values, schedule.backward, self.fused)
        peak = max(forward.peak, carried(schedule, forward) + backward.peak)
        return Candidate(schedule, forward, backward, peak, self._seconds(schedule) - self.stock_seconds)

    def _seconds(self, schedule: Schedule) -> float:
        return sum(schedule.seconds) + sum(self.facts.values[i].hold for i in schedule.saved)

    def uniform(self) -> list[tuple[Entry, Candidate]]:
        """Every price with every length of chain; those that are neither faster nor smaller than another left out."""
        if self._uniform is None:
            self._uniform = []
            try:
                self.cut = SavedSetCut(self.facts)
                prices = self.cut.prices(*PRICES, MENU)
            except Uncuttable:
                return self._uniform
            found = []
            for price, segment in itertools.product(prices, (0, *self.segments())):
                held = self.boundaries(segment) if segment else ()
                candidate = self._cut(np.full(len(self.facts.region_names), price), held)
                if candidate is not None:
                    found.append((Entry(price, segment), candidate))
            for entry, candidate in sorted(found, key=lambda pair: (fastest(pair[1]), pair[0].segment)):
                if all(candidate.peak < other.peak for _, other in self._uniform):
                    self._uniform.append((entry, candidate))
        return self._uniform

    def savable(self) -> list[int]:
        """Values that may be saved and from which the backward's reads come."""
        values = self.facts.values
        return [
            i
            for i in SavedSetCut(self.facts).needed
            if values[i].savable
            and values[i].kind != "view"
            and not (values[i].pin and values[i].pin[0] == "recompute")
        ]

    def segments(self) -> Iterator[int]:
        """Numbers of neighbouring regions that one chain of recomputation may span."""
        size = 1
        while size < len(self.facts.region_names):
            yield size
            size *= 2

    def boundaries(self, segment: int) -> frozenset[int]:
        """Values that enter a later segment and that more than fused operators have made: never computed again."""
        if segment in self._boundaries:
            return self._boundaries[segment]
        values, forward = self.facts.values, set(self.facts.forward)
        crossing: set[int] = set()
        for i in self.facts.forward:
            for read in values[i].inputs:
                if read in forward and values[read].region // segment != values[i].region // segment:
                    root = values[read].storage
                    crossing.add(root if values[root].savable else read)
        kept: set[int] = set()
        easy = [value.kind in ("primal", "tangent") for value in values]
        for i in self.facts.forward:
            value = values[i]
            easy[i] = value.kind in ("view", "pointwise", "symbol") and all(easy[j] for j in value.inputs)
            if i in crossing and not easy[i] and value.savable and value.kind != "view":
                kept.add(i)
                easy[i] = True
        self._boundaries[segment] = frozenset(kept)
        return self._boundaries[segment]

    def _mixed(self, slow: Entry, fast: Entry, bound: int) -> Candidate | None:
        """The slower choice for as few of the first regions as the bound allows, the faster for the rest."""
        count = len(self.facts.region_names)
        best, low, high = None, 1, count - 1
        while low <= high:
            middle = (low + high) // 2
            candidate = self._split(slow, fast, middle)
            if candidate is not None and candidate.peak <= bound:
                best = candidate if best is None else min(best, candidate, key=fastest)
                high = middle - 1
            else:
                low = middle + 1
        return best

    def _split(self, first: Entry, then: Entry, regions: int) -> Candidate | None:
        values = self.facts.values
        number = np.arange(len(self.facts.region_names))
        price = np.where(number < regions, first.price, then.price)
        held: set[int] = set()
        if first.segment:
            held |= {i for i in self.boundaries(first.segment) if values[i].region < regions}
        if then.segment:
            held |= {i for i in self.boundaries(then.segment) if values[i].region >= regions}
        return self._cut(price, held)

    def _cut(self, price: np.ndarray, held: Collection[int]) -> Candidate | None:
        try:
            return self.candidate(self.cut.at(price, held).saved)
        except Uncuttable:
            return None

    def candidate(self, saved: frozenset[int]) -> Candidate | None:
        """Schedule and sweep a saved set; None where the backward cannot be computed from it."""
        if saved not in self._seen:
            try:
                self._seen[saved] = self.evaluate(make_schedule(self.facts, saved, self.copies))
            except Unschedulable:
                return None
        return self._seen[saved]

    def _polish(self, start: Candidate, bound: int | None) -> Candidate:
        """Save single values again while there is room; without a bound, whatever lowers the peak."""
        polish = Polish(self, start, bound)
        return polish.lower() if bound is None else polish.fill()


def carried(schedule: Schedule, forward: Sweep) -> int:
    """Bytes that the forward leaves allocated: saved values and its other outputs."""
    return sum(size for s, size in forward.bytes.items() if s >= schedule.forward.inputs and s not in forward.deaths)
