"""Improve a choice one value at a time, every step scheduled and swept.

fill: values are saved again, those first whose recomputation is dearest a byte, later ones before equal earlier ones
(what is saved late lives shortly). As many at once as the bound allows, found by bisection; the first that does not fit
is skipped and the next ones tried.
lower: single values are saved, dropped or exchanged while that lowers the peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memgraph.facts.actions import Recompute
from memgraph.planner.candidate import Candidate, fastest, smallest

if TYPE_CHECKING:
    from memgraph.planner.solve import Planner

# How many nodes all sweeps of one polish may visit together: about a second on one core.
EFFORT = 60_000
LEAST = 16


class Polish:
    """One polish of one candidate; its effort is counted in sweeps, so that it ends and always ends alike."""

    def __init__(self, planner: Planner, start: Candidate, bound: int | None) -> None:
        self.planner, self.best, self.bound = planner, start, bound
        self.left = max(LEAST, EFFORT // max(1, len(planner.facts.values)))

    def fill(self) -> Candidate:
        """The fastest candidate found whose peak stays at or under the bound."""
        skipped: set[int] = set()
        while self.left > 0:
            wanted = [i for i in self._again() if i not in skipped]
            if not wanted:
                break
            low, high, fits = 1, len(wanted), 0
            while low <= high and self.left > 0:
                middle = (low + high) // 2
                if self._try(wanted[:middle]):
                    fits, low = middle, middle + 1
                else:
                    high = middle - 1
            skipped.update(wanted[fits : fits + 1] if fits else wanted[:1])
        return self.best

    def lower(self) -> Candidate:
        """The candidate with the lowest peak that single changes lead to."""
        improved = True
        tried: set[frozenset[int]] = set()
        while improved and self.left > 0:
            improved = False
            for saved in self._changes():
                if self.left <= 0:
                    break
                if saved in tried:
                    continue
                tried.add(saved)
                self.left -= 1
                candidate = self.planner.candidate(saved, self.best.schedule.copies)
                if candidate is not None and smallest(candidate) < smallest(self.best):
                    self.best, improved = candidate, True
                    break
        return self.best

    def _try(self, more: list[int]) -> bool:
        self.left -= 1
        saved = frozenset(self.start_saved) | frozenset(more)
        candidate = self.planner.candidate(saved, self.best.schedule.copies)
        if candidate is None or candidate.peak > self.bound:
            return False
        if fastest(candidate) < fastest(self.best):
            self.best = candidate
        return True

    @property
    def start_saved(self) -> frozenset[int]:
        return frozenset(self._base)

    def _again(self) -> list[int]:
        """Recomputed values that may be saved instead, dearest a byte first."""
        values = self.planner.facts.values
        self._base = self.best.schedule.saved
        again = [
            i
            for i in self.best.schedule.recomputed
            if values[i].savable
            and values[i].kind != "view"
            and values[i].bytes
            and values[i].seconds > values[i].hold
            and not values[i].pinned(Recompute)
        ]
        return sorted(again, key=lambda i: ((values[i].hold - values[i].seconds) / values[i].bytes, -i))

    def _changes(self) -> Iterator[frozenset[int]]:
        values = self.planner.facts.values
        for i in self._again():
            yield frozenset(self._base) | {i}
        for i in sorted(self._base, key=lambda i: (-values[values[i].storage].bytes, i)):
            if self._dropped(i):
                yield frozenset(self._base) - {i}
        # Exchanged: without it 3 of 95 random graphs of up to 10 values missed their lowest peak, by up to 29 %.
        for i in filter(self._dropped, self._base):
            for j in self.planner.savable():
                if j not in self._base:
                    yield frozenset(self._base) - {i} | {j}

    def _dropped(self, i: int) -> bool:
        """Whether a saved value need not be."""
        value = self.planner.facts.values[i]
        return value.kind != "primal" and value.fixed is None and (value.pin is None or value.pinned(Recompute))
