"""Uniform choices: one price a byte and one set of borders for the whole graph; and mixtures of two of them.

Problem: propose few saved sets, of which some one is near the best for any bound.

    price      of a byte, from none to any recomputation        the cut (cut.py) at up to MENU prices
    borders    every region | lowest peak | ... | Inductor's    the shortest path (segments.py) at LIMITS limits
    copies     of held values | of live values                  where a value may be computed once more (copies.py)

Why not a library: what is searched is a handful of one-dimensional walks; each point costs a cut (scipy) and a sweep.

Algorithm: every price is tried without borders, the dearest prices with each set of borders; in a large graph without
those sets of which their neighbours say enough. Of all these candidates,
those stay that are faster or smaller than every other. Where one is too large and a slower one fits, the first regions
take the slower and the others the faster: what is saved early lives longest. Bisection finds how many must. None of the
uniform choices depends on the bound, so a lower bound finds no plan that a higher one would have missed.

Oracle: tests/properties/test_plans.py compares the planner with every saved set of small graphs (test_brute_force).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from memgraph.planner.candidates import LARGE, Candidate, Candidates, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.cut import SavedSetCut, Uncuttable
from memgraph.planner.segments import border_values, segment_costs

# The most prices.
MENU = 6
# Limits on the peak for which borders are found, between the lowest that they reach and Inductor's own peak, and how
# many of the prices (dearest bytes first) are tried with each.
LIMITS = 6
BORDER_PRICES = 2
# Peaks that differ by no more than this share hardly differ.
ALIKE = 0.01
# From "a byte is worth next to nothing" to "a byte is worth any recomputation", in seconds a byte.
PRICES = (1e-12, 1e-6)


@dataclasses.dataclass(frozen=True, order=True)
class Choice:
    """A price, borders and copies for the whole graph."""

    price: float
    """Seconds that a byte is worth."""
    borders: tuple[int, ...]
    """Regions at whose start chains of recomputation end."""
    copies: Copies
    """Which values may be computed once more."""


class UniformChoices:
    """The uniform choices of one joint graph."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates, self.facts = candidates, candidates.facts
        self._border_values = functools.cache(functools.partial(border_values, self.facts))

    @functools.cached_property
    def _cut(self) -> SavedSetCut:
        return SavedSetCut(self.facts)

    @functools.cached_property
    def swept(self) -> tuple[tuple[Choice, Candidate], ...]:
        """Every price alone, and the dearest with sets of borders, fastest first; none if no saved set is legal."""
        copies = self.candidates.copies
        try:
            prices = self._cut.prices(*PRICES, MENU)
        except Uncuttable:
            return ()
        rows = [[Choice(price, (), copies)] for price in prices]
        sets = self._borders(prices[-1])
        kinds = [(price, copies) for price in prices[-BORDER_PRICES:]]
        kinds += [(prices[-1], Copies.OF_LIVE)] if copies is not Copies.NONE else []
        for price, kind in kinds:
            row = [Choice(price, borders, kind) for borders in sets]
            rows += [row[:1], row[1:]]  # borders at all regions, then those of one limit after another
        swept = itertools.chain.from_iterable(map(self._row, rows))
        return tuple(sorted(swept, key=lambda pair: (by_time(pair[1]), pair[0])))

    @functools.cached_property
    def found(self) -> tuple[tuple[Choice, Candidate], ...]:
        """Choices that no other one beats in both time and peak, fastest first."""
        best: list[tuple[Choice, Candidate]] = []
        for choice, candidate in self.swept:
            if all(candidate.peak < other.peak for _, other in best):
                best.append((choice, candidate))
        return tuple(best)

    @functools.cached_property
    def least_seconds(self) -> float:
        """Time of the fastest plan under no bound, beyond Inductor's own choice: bytes cost nothing in it.

        Minus infinity where no saved set is legal.
        """
        try:
            return self._cut.at(0.0).seconds - self.candidates.stock_time
        except Uncuttable:
            return -math.inf

    def mixed(self, slow: Choice, fast: Choice, bound: int) -> Candidate | None:
        """The slower choice for as few of the first regions as the bound allows, the faster for the rest."""
        best, low, high = None, 1, len(self.facts.region_names) - 1
        while low <= high:
            middle = (low + high) // 2
            candidate = self._split(slow, fast, middle)
            if candidate is not None and candidate.peak <= bound:
                best = candidate if best is None else min(best, candidate, key=by_time)
                high = middle - 1
            else:
                low = middle + 1
        return best

    def _row(self, row: Sequence[Choice]) -> Iterator[tuple[Choice, Candidate]]:
        """Choices whose limits rise from one to the next; of a large graph, but for those between two that say enough.

        Mostly peaks rise with the limits. So what is between two peaks that hardly differ, or between one choice and
        another that is smaller and faster, is rarely of use.
        """
        if len(self.facts.values) <= LARGE:
            yield from ((choice, candidate) for choice in row if (candidate := self._at(choice)))
            return
        ends = [(choice, candidate) for choice in row[:: max(1, len(row) - 1)] if (candidate := self._at(choice))]
        yield from ends
        waiting = [(0, len(row) - 1, ends[0][1], ends[1][1])] if len(ends) == 2 else []
        while waiting:
            low, high, first, last = waiting.pop()
            middle = (low + high) // 2
            if middle == low or _hardly_differ(first, last) or _beats(first, last) or _beats(last, first):
                continue
            found = self._at(row[middle])
            if found is not None:
                yield row[middle], found
                waiting += [(low, middle, first, found), (middle, high, found, last)]

    def _borders(self, price: float) -> list[tuple[int, ...]]:
        """Sets of borders, for limits on the peak from the lowest that can be reached up to Inductor's own peak."""
        every = tuple(range(1, len(self.facts.region_names)))
        candidate = self._at(Choice(price, every, self.candidates.copies)) if every else None
        if candidate is None:
            return []
        costs = segment_costs(self.facts, candidate)
        lowest = costs.lowest()
        limits = np.geomspace(lowest, max(lowest, self.candidates.stock.peak), LIMITS)
        found = [costs.borders(limit) for limit in limits]
        return list(dict.fromkeys([every, *(borders for borders in found if borders)]))

    def _at(self, choice: Choice) -> Candidate | None:
        price = np.full(len(self.facts.region_names), choice.price)
        return self._candidate(price, self._border_values(choice.borders), choice.copies)

    def _split(self, first: Choice, then: Choice, regions: int) -> Candidate | None:
        """One choice for so many of the first regions, the other for the rest."""
        values = self.facts.values
        number = np.arange(len(self.facts.region_names))
        price = np.where(number < regions, first.price, then.price)
        held = {i for i in self._border_values(first.borders) if values[i].region < regions}
        held |= {i for i in self._border_values(then.borders) if values[i].region >= regions}
        return self._candidate(price, held, max(first.copies, then.copies))

    def _candidate(self, price: np.ndarray, held: Collection[int], copies: Copies) -> Candidate | None:
        try:
            return self.candidates.of(self._cut.at(price, held).saved, copies)
        except Uncuttable:
            return None


def _beats(one: Candidate, other: Candidate) -> bool:
    """Whether one candidate is neither larger nor slower than another."""
    return one.peak <= other.peak and one.seconds <= other.seconds


def _hardly_differ(one: Candidate, other: Candidate) -> bool:
    return abs(one.peak - other.peak) <= ALIKE * max(one.peak, other.peak)
