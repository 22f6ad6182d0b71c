"""Choose what to save so that the peak stays under a bound at the least recomputation.

1. Uniform: the cut (cut.py) at a handful of prices a byte, each once as it is and once for each of a handful of
choices of
   borders (segments.py), across which no chain of recomputation reaches.
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
from collections.abc import Collection

import numpy as np

from memgraph.facts.actions import Recompute
from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import sweep
from memgraph.planner.candidate import Candidate, fastest, smallest
from memgraph.planner.cut import SavedSetCut, Uncuttable
from memgraph.planner.offload import Offloader, Tiers
from memgraph.planner.polish import Polish
from memgraph.planner.schedule import Copies, Schedule, Unschedulable, make_schedule
from memgraph.planner.segments import segment_costs

MENU = 6
# Limits on the peak for which borders are found, between the lowest that they reach and Inductor's own peak, and how
# many of the prices (dearest bytes first) are tried with each.
LIMITS = 6
BORDER_PRICES = 2
NEIGHBOURS = 2
# From "a byte is worth next to nothing" to "a byte is worth any recomputation", in seconds a byte.
PRICES = (1e-12, 1e-6)


@dataclasses.dataclass(frozen=True, order=True)
class Entry:
    """A uniform choice: a price in seconds a byte, and the regions at whose start chains of recomputation end."""

    price: float
    borders: tuple[int, ...]
    copies: Copies


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
        self.facts, self.fused, self.recompute = facts, fused, recompute
        self.copies = Copies.OF_HELD if copies else Copies.NONE
        base = make_schedule(facts, facts.stock_saved, self.copies, settle=False)
        self.stock_seconds = self._seconds(base)
        self.stock = dataclasses.replace(self.evaluate(base), stock=True)
        self._seen: dict[tuple[frozenset[int], Copies], Candidate] = {}
        if not any(value.accumulates for value in facts.values):
            self._seen[frozenset(base.saved), self.copies] = self.stock
        self._boundaries: dict[tuple[int, ...], frozenset[int]] = {}
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
        found = Candidate(schedule, forward, backward, 0, self._seconds(schedule) - self.stock_seconds)
        return dataclasses.replace(found, peak=max(forward.peak, found.carried + backward.peak))

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
            entries = [Entry(price, (), self.copies) for price in prices]
            for borders in self.borders(prices[-1]):
                entries += [Entry(price, borders, self.copies) for price in prices[-BORDER_PRICES:]]
                if self.copies is not Copies.NONE:
                    entries.append(Entry(prices[-1], borders, Copies.OF_LIVE))
            found = [(entry, candidate) for entry in entries if (candidate := self._at(entry)) is not None]
            for entry, candidate in sorted(found, key=lambda pair: (fastest(pair[1]), pair[0])):
                if all(candidate.peak < other.peak for _, other in self._uniform):
                    self._uniform.append((entry, candidate))
        return self._uniform

    def savable(self) -> list[int]:
        """Values that may be saved and from which the backward's reads come."""
        values = self.facts.values
        return [
            i
            for i in SavedSetCut(self.facts).needed
            if values[i].savable and values[i].kind != "view" and not values[i].pinned(Recompute)
        ]

    def borders(self, price: float) -> list[tuple[int, ...]]:
        """Choices of borders, for limits on the peak from the lowest that can be reached up to Inductor's own peak."""
        every = tuple(range(1, len(self.facts.region_names)))
        candidate = self._at(Entry(price, every, self.copies)) if every else None
        if candidate is None:
            return []
        costs = segment_costs(self.facts, candidate)
        lowest = costs.lowest()
        limits = np.geomspace(lowest, max(lowest, self.stock.peak), LIMITS)
        found = [costs.borders(limit) for limit in limits]
        return list(dict.fromkeys([every, *(chosen for chosen in found if chosen)]))

    def boundaries(self, borders: tuple[int, ...]) -> frozenset[int]:
        """Values that cross a border and that more than fused operators have made: never computed again.

        Where an operator reads several values of earlier segments that are larger than its own (a list of all states
        of a recurrent network, stacked at the end), its output is held instead of them.
        """
        if borders in self._boundaries:
            return self._boundaries[borders]
        values, forward = self.facts.values, set(self.facts.forward)
        segment = np.searchsorted(borders, np.arange(len(self.facts.region_names)), side="right")
        crossing: set[int] = set()
        for i in self.facts.forward:
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
        kept: set[int] = set()
        easy = [value.kind in ("primal", "tangent") for value in values]
        for i in self.facts.forward:
            value = values[i]
            easy[i] = value.kind in ("view", "pointwise", "symbol") and all(easy[j] for j in value.inputs)
            if i in crossing and not easy[i] and value.savable and value.kind != "view":
                kept.add(i)
                easy[i] = True
        self._boundaries[borders] = frozenset(kept)
        return self._boundaries[borders]

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
        held = {i for i in self.boundaries(first.borders) if values[i].region < regions}
        held |= {i for i in self.boundaries(then.borders) if values[i].region >= regions}
        return self._cut(price, held, max(first.copies, then.copies))

    def _at(self, entry: Entry) -> Candidate | None:
        price = np.full(len(self.facts.region_names), entry.price)
        return self._cut(price, self.boundaries(entry.borders), entry.copies)

    def _cut(self, price: np.ndarray, held: Collection[int], copies: Copies) -> Candidate | None:
        try:
            return self.candidate(self.cut.at(price, held).saved, copies)
        except Uncuttable:
            return None

    def candidate(self, saved: frozenset[int], copies: Copies | None = None) -> Candidate | None:
        """Schedule and sweep a saved set; None where the backward cannot be computed from it."""
        key = (saved, self.copies if copies is None else copies)
        if key not in self._seen:
            try:
                self._seen[key] = self.evaluate(make_schedule(self.facts, *key))
            except Unschedulable:
                return None
        return self._seen[key]

    def _polish(self, start: Candidate, bound: int | None) -> Candidate:
        """Save single values again while there is room; without a bound, whatever lowers the peak."""
        polish = Polish(self, start, bound)
        return polish.lower() if bound is None else polish.fill()
