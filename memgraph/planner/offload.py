"""Choose which saved values leave the device, beside what is computed again.

Problem: given candidates of the planner, the links of one or two tiers and their room, which saved values are copied
away in the forward and back in the backward, so that the bound is kept at the least time?

Why not a library: whether a copy hides depends on all others in its queue and on what runs meanwhile, and whether it
helps depends on what stands at the peak. Both are known when the whole step has been swept with its copies in place.

Algorithm: each of a few candidates is a base. Of its saved values those born first leave, as few as the bound asks for
(search): they are away the longest, so their copies hide best; those that would take more by leaving than by their
copies (`Tier.each`) come last. The window of bytes that may be under way is the widest that fits: a smaller one gives
memory back earlier and makes the step wait longer. The fastest of all bases wins; what of it is computed again in less
time than its copies take does not leave, and what need not leave stays.

Oracle: tests/properties/test_plans.py: copies at any legal time give the same bits and the peak of the sweep, and no
bound that is kept without offload is missed or kept more slowly with it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from memgraph.facts.actions import Offload
from memgraph.planner import polish
from memgraph.planner.candidates import LARGE, Candidate, Candidates, by_peak, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.leaving import Leaving, Tiers
from memgraph.planner.queues import Tier, place

# How many bases are tried.
BASES = 8
# About how often a base is swept to see what has to leave.
SWEEPS_OF_A_BASE = 6
# So many sweeps each look for values that are computed again instead, and for values that need not leave, once the best
# plan is known. A U-Net (3,080 values) at 25 % of its peak, a disk that takes 0.8 ms a value: 62.1 % slower than
# Inductor's own split where nothing is computed again instead, 26.4 % with 60 sweeps, 24.6 % with 120, 150 and 500.
SWEEPS_TO_KEEP = 120
# Where at most FEW values leave a graph of at most SMALL values, each is tried on the device: a sweep each.
FEW, SMALL = 8, 500
# Windows, as multiples of the largest value that may leave: those tried for a bound that the narrowest (0) keeps,
# widest first, and those for the lowest peak.
WINDOWS = (math.inf, 8.0, 2.0)
NARROW = (2.0, 0.0)


class Offloader:
    """Offload for one joint graph. It keeps nothing that depends on a bound."""

    def __init__(self, candidates: Candidates, tiers: Tiers, *, recompute: bool = True) -> None:
        """recompute: whether values may be computed again that Inductor's own choice saves."""
        self.recompute = recompute
        self.candidates, self.facts, self.tiers = candidates, candidates.facts, tiers
        self.leaving = Leaving(self.facts, tiers)
        values = self.facts.values
        self._pins = any(value.pinned(Offload) for value in values)
        self._empty: dict[tuple[tuple[int, ...], Copies, float], Candidate] = {}

    def pinned(self, base: Candidate) -> Candidate:
        """The base without the values that rules send away. No other value leaves."""
        if not self._pins:
            return base
        roots = self.plain if base.stock else base
        chosen = self.leaving.assign(roots, ())
        return self._with(roots, chosen, math.inf) if chosen else base

    def best(
        self,
        bound: int,
        pool: Sequence[Candidate],
        more: Sequence[Candidate] = (),
        least: float = -math.inf,
        known: Candidate | None = None,
    ) -> Candidate | None:
        """The fastest candidate found whose peak is at most `bound`; None if there is none.

        pool: candidates of which a few are bases, with Inductor's own choice.  more: candidates that all are bases.
        least: seconds of which it is known that no candidate beats them.  known: a candidate that keeps the bound.
        """
        best = known
        for base in self._bases(pool, more):
            if best is not None and base.seconds >= best.seconds:
                break
            if best is not None and base.seconds + self._least_cost(base.peak - bound) >= best.seconds:
                continue
            found = self._under(base, bound)
            if found is not None:
                best = found if best is None else min(best, found, key=self._cost)
        values = len(self.facts.values)
        # Of a large graph no plan near the best one is tried: its sweeps would reach a handful of the changes.
        if values > LARGE or (best is not None and best.seconds <= least and values > SMALL):
            return best
        best = self._changed(best, self._bases(pool, more), bound)
        return None if best is None else self._lighter(best, bound)

    def _least_cost(self, size: int) -> float:
        """Seconds that a step takes longer, at least, if so many bytes leave: what leaves lowers a peak by no more."""
        return min((tier.taken(size) for tier in self.tiers.tiers), default=0.0) if size > 0 else 0.0

    def further(
        self, best: Candidate, bound: int, pool: Sequence[Candidate], more: Sequence[Candidate] = ()
    ) -> Candidate:
        """The fastest candidate found near the best and the bases, by many more sweeps.  pool, more: as of `best`."""
        changed = self._changed(best, self._bases(pool, more), bound, polish.THOROUGH)
        return best if changed is None or changed is best else self._lighter(changed, bound)

    def _changed(
        self, best: Candidate | None, bases: Sequence[Candidate], bound: int, effort: int = polish.EFFORT
    ) -> Candidate | None:
        """The fastest candidate found near the best one and near the bases.  effort: as of `polish.sweeps`."""
        left = polish.sweeps(self.facts, effort)
        starts = list(bases) if best is None else [best, *bases]
        tried: set[tuple[frozenset[int], Copies]] = set()
        while starts:
            start = starts.pop(0)
            for key in polish.near(self.candidates, start):
                if left <= 0:
                    return best
                if key in tried:
                    continue
                tried.add(key)
                left -= 1
                changed = self.candidates.of(*key)
                if changed is None or not self._allowed(changed) or (best and changed.seconds >= best.seconds):
                    continue
                left -= SWEEPS_OF_A_BASE
                found = self._under(changed, bound)
                if found is not None and (best is None or self._cost(found) < self._cost(best)):
                    best = found
                    starts[:0] = [best, start]  # what was tried of this start is not tried again
                    break
        return best

    def _allowed(self, candidate: Candidate) -> bool:
        """Whether a candidate computes nothing again that may not be."""
        return self.recompute or candidate.schedule.recomputed <= self.plain.schedule.recomputed

    def smallest(self, pool: Sequence[Candidate], more: Sequence[Candidate] = ()) -> Candidate | None:
        """The candidate with the lowest peak found: everything that may leave has left.  pool, more: as of `best`."""
        found = [self._emptied(base, window) for base in self._bases(pool, more) for window in NARROW]
        return min(found, key=by_peak, default=None)

    def _cost(self, candidate: Candidate) -> tuple[float, int, int]:
        """A sort key: by time; of two that take equally long, the one that moves less comes first: disks wear."""
        moved = sum(self.facts.values[move.value].bytes for move in candidate.moves)
        return (round(candidate.seconds, 9), moved, candidate.peak)

    def _bases(self, pool: Sequence[Candidate], more: Sequence[Candidate]) -> list[Candidate]:
        """At most BASES of Inductor's own choice and the pool, evenly spread, and all others; fastest first."""
        unique = {id(candidate): candidate for candidate in (self.plain, *pool)}
        ordered = sorted(unique.values(), key=by_time)
        if len(ordered) > BASES:
            step = (len(ordered) - 1) / (BASES - 1)
            ordered = [ordered[round(n * step)] for n in range(BASES)]
        chosen = {id(candidate): candidate for candidate in (*ordered, *more)}
        return sorted(chosen.values(), key=by_time)

    @functools.cached_property
    def plain(self) -> Candidate:
        """Inductor's own choice, with the owner of the bytes in place of each saved view: a view cannot leave alone."""
        values, stock = self.facts.values, self.candidates.stock
        saved = set()
        for i in stock.schedule.saved:
            root = values[i].storage
            moves = values[i].kind == "view" and values[root].movable and values[root].kind != "primal"
            saved.add(root if moves else i)
        return self.candidates.of(frozenset(saved)) or stock

    def _light(self, i: int) -> bool:
        """Whether a value takes more on its way to any tier by leaving at all than its copies take."""
        size = self.facts.values[i].bytes
        return all(tier.each > tier.seconds(size) for tier in self.tiers.tiers if not tier.only_rules)

    def _under(self, base: Candidate, bound: int) -> Candidate | None:
        """The base with as few of its first-born values gone as the bound asks for, in the widest window that fits."""
        movable = sorted(self.leaving.movable(base), key=self._light)
        narrowest = self._emptied(base, 0)
        if narrowest.peak > bound:  # nothing gives memory back earlier
            return self._alone(base, bound)
        tried = ((window, self._emptied(base, window)) for window in WINDOWS)
        wide, emptied = next((pair for pair in tried if pair[1].peak <= bound), (0.0, narrowest))
        window, best = self._bytes(base, wide), emptied
        # What leaves lowers the peak by no more than its bytes, and mostly by nearly these. So the search begins where
        # they suffice, and goes on in steps that double until the bound is kept; then between the last two.
        gone = itertools.accumulate((self.facts.values[i].bytes for i in movable), initial=0)
        low = middle = next((n for n, size in enumerate(gone) if base.peak - size <= bound), 0)
        high, step = len(movable) - 1, 1
        while low <= high:
            found = self._with(base, self.leaving.assign(base, movable[:middle]), window)
            if found.peak <= bound:
                best = min(best, found, key=self._cost)
                high, step = middle - 1, len(movable)
            else:
                low, step = middle + 1, 2 * step
            middle = min(low + step, (low + high) // 2)
        return self._fewer(base, best, bound, window)

    def _emptied(self, base: Candidate, window: float) -> Candidate:
        """The base with everything gone that may leave.  window: as a multiple of the largest such value."""
        key = (base.schedule.saved, base.schedule.copies, window)
        if key not in self._empty:
            everything = self.leaving.assign(base, self.leaving.movable(base))
            self._empty[key] = self._with(base, everything, self._bytes(base, window))
        return self._empty[key]

    def _alone(self, base: Candidate, bound: int) -> Candidate | None:
        """The base with one single value gone, whichever is best; of small graphs.

        One that is born late may do alone, and where all have left, a copy back may make the peak.
        """
        movable = self.leaving.movable(base)
        if not 1 < len(movable) <= FEW or len(self.facts.values) > SMALL:
            return None
        alone = ((self.leaving.assign(base, [i]), window) for i in movable for window in (math.inf, 0.0))
        tried = (self._with(base, chosen, window) for chosen, window in alone)
        return min((found for found in tried if found.peak <= bound), key=self._cost, default=None)

    def _fewer(self, base: Candidate, best: Candidate, bound: int, window: float) -> Candidate:
        """The same with single values kept on the device that need not leave; of small graphs.

        Values leave in the order of their births, and one that must may come behind one that need not.
        """
        gone = [move.value for move in best.moves]
        alone = self._alone(base, bound) if gone else None
        best = best if alone is None else min(best, alone, key=self._cost)
        if not 1 < len(gone) <= FEW or len(self.facts.values) > SMALL:
            return best
        for i in gone:
            left = [move.value for move in best.moves if move.value != i]
            found = self._with(base, self.leaving.assign(base, left), window)
            if found.peak <= bound:
                best = min(best, found, key=self._cost)
        return best

    def _lighter(self, best: Candidate, bound: int) -> Candidate:
        """The same plan with less that leaves: values are computed again instead, or stay on the device.

        Values leave in the order of their births until the bound is kept: one that must comes behind many that need
        not, and each takes time by leaving at all (`Tier.each`).
        """
        if self.recompute:
            best = self._less(best, bound, again=True)
        return self._less(best, bound, again=False)

    def _less(self, best: Candidate, bound: int, *, again: bool) -> Candidate:
        """The plan with fewer values gone: half of them, quarters, down to single ones.

        again: they are computed again, those first that are computed fastest for what their copies take; else they
        stay on the device, dearest a byte first.
        """
        values, tiers = self.facts.values, {move.value: self.tiers.named(move.tier) for move in best.moves}
        copies = best.schedule.copies
        saved = frozenset(best.schedule.saved)
        gone = [v for v in tiers if self.leaving.rule(v) is None and not (again and values[v].fixed)]
        stays = [v for v in tiers if v not in gone]
        base = self.candidates.of(saved, copies)
        if base is None or not gone:
            return best

        def dearness(v: int) -> float:
            tier = tiers[v]
            assert tier is not None
            taken = tier.each + tier.seconds(values[v].bytes)
            return taken - values[v].seconds if again else taken / values[v].bytes

        def without(base: Candidate, rest: Sequence[int], window: float) -> Candidate:
            return self._with(base, self.leaving.assign(base, [*rest, *stays]), window)

        gone.sort(key=dearness, reverse=True)
        windows = (self._bytes(base, window) for window in WINDOWS)
        fits = (w for w in windows if without(base, gone, w).peak <= bound)
        window, left, step = next(fits, 0.0), SWEEPS_TO_KEEP, math.ceil(len(gone) / 2)
        while step and left:
            first = 0
            while first < len(gone) and left:
                left -= 1
                group, rest = gone[first : first + step], gone[:first] + gone[first + step :]
                smaller = self.candidates.of(saved.difference(group), copies) if again else base
                found = None if smaller is None else without(smaller, rest, window)
                if found is not None and found.peak <= bound and self._cost(found) < self._cost(best):
                    best, gone = found, rest
                    saved = saved.difference(group) if again else saved
                    base = smaller
                else:
                    first += step
            step //= 2
        return best

    def _with(self, base: Candidate, chosen: Sequence[tuple[int, Tier]], window: float) -> Candidate:
        """The base with the copies of the chosen values in place, swept.  window: bytes that may be under way."""
        placed = place(self.facts, base.schedule, self.leaving.clock(base), chosen, window)
        found = self.candidates.evaluate(placed.schedule)
        seconds = found.seconds + placed.stall + placed.drag
        return dataclasses.replace(found, seconds=seconds, moves=placed.moves, stall=placed.stall, drag=placed.drag)

    def _bytes(self, base: Candidate, window: float) -> float:
        """A window in bytes.  window: as a multiple of the largest value that may leave."""
        if window == math.inf or window == 0:
            return window
        return window * max((self.facts.values[i].bytes for i in self.leaving.movable(base)), default=0)

    def without_room(self, chosen: Candidate, missed: bool) -> Iterator[tuple[Tier, int]]:
        """As `Leaving.without_room`, for a choice."""
        return self.leaving.without_room(self.plain if chosen.stock else chosen, chosen, missed)
