"""Saved sets near the optimum of the linear program that bounds all plans (bound.py).

Problem: a cut at one price a byte (uniform.py) knows sums of bytes. The linear program also knows at which operators
the bytes stand, so it saves late values and drops early ones where that is better, and prices each layer by itself.

Why not a library: HiGHS has solved the program; what is left is to round its shares to decisions. They are almost all 0
or 1: of 500 values of a Llama of 8 layers, 1 to 6 are in between.

Algorithm: solve it for a few peaks, from the least that it allows to Inductor's own, as far as a bound asks for. Save
all values that have a share, or those that are saved whole. A sweep tells what each set really takes. Where none is
near enough, the same is done with a program that knows what it costs that values are made anew (remade.py). What is
found for a peak does not depend on a bound, and a higher bound has all peaks of a lower one, so a lower bound finds no
plan that a higher one would have missed.

Oracle: tests/properties/test_plans.py compares the planner with every saved set of small graphs (test_brute_force).
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import Candidate, Candidates, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.leaving import Tiers

# Peaks for which the program is solved, and how many of those above a bound are solved for it: some sets take less than
# the peak of their program, and from others values may leave.
PEAKS, BEYOND = 6, 2
# A larger graph takes too long, and gains little: with many layers a mixture of two uniform choices comes near enough.
# Llama at 60 % of its peak: 1.8 % above the bound with 8 layers (1,705 values), 0.6 % with 32 (6,433).
MOST_VALUES = 2_500
# An optimum may pass its peak by this share: the sweep tells what is really taken, and a program without the rows that
# are broken by less takes half the time (Llama of 12 layers: 18,000 rows in place of 29,000, with costs that are equal
# to 0.1 %).
TOLERANCE = 0.05
# Each of these makes a saved set: the values with at least this share, of the coarse program and of the other one.
# Shares of the other one are less often 0 or 1.
SHARES = ((0.01, 0.99), (0.25, 0.4, 0.75))
# A set of the coarse program is good enough where a plan of about its peak takes this share of a step more than its
# optimum: the other program is not solved for that peak.
ENOUGH = 0.01


class Relaxed:
    """Candidates of one joint graph by its linear program."""

    def __init__(self, candidates: Candidates, tiers: Tiers | None = None) -> None:
        self.candidates, self.tiers = candidates, tiers
        self._of_peak: list[list[Candidate]] = []
        """By place in `_peaks`, what was found for it; those behind the end have not been asked for."""

    def under(self, bound: int) -> tuple[Candidate, ...]:
        """Those of all peaks up to a bound, and of a few beyond it; fastest first."""
        if len(self.candidates.facts.values) > MOST_VALUES:
            return ()
        peaks = self._peaks
        wanted = min(len(peaks), bisect.bisect_left(peaks, bound) + BEYOND)
        while len(self._of_peak) < wanted:  # always in this order: what is found for a peak goes by those before it
            self._of_peak.append(list(self._found(peaks[len(self._of_peak)])))
        found = {id(candidate): candidate for some in self._of_peak[:wanted] for candidate in some}
        return tuple(sorted(found.values(), key=by_time))

    @functools.cached_property
    def _bounds(self) -> tuple[LowerBounds, ...]:
        """Programs of its own: the rows of shared ones would depend on what others have asked before.

        The coarse one has more shares of 0 and 1, and the other one knows more.
        """
        kinds = (True, False) if self.tiers is None else (True,)
        return tuple(LowerBounds(self.candidates, self.tiers, TOLERANCE, coarse=coarse) for coarse in kinds)

    @functools.cached_property
    def _peaks(self) -> list[int]:
        """The peaks for which the program is solved, from the least that it allows to Inductor's own."""
        # The bound is a little below the least peak that the program has a solution for.
        least = (1 + 1e-4) * self._bounds[0].smallest() + 1
        return [int(peak) for peak in np.linspace(least, max(least, self.candidates.stock.peak), PEAKS)]

    def _found(self, peak: int) -> Iterator[Candidate]:
        """The candidates of one peak."""
        for bounds, shares in zip(self._bounds, SHARES, strict=False):
            optimum = bounds.optimum(peak)
            if optimum is None:
                continue
            found = list(self._rounded(optimum[1], shares))
            yield from found
            enough = optimum[0] + ENOUGH * self.candidates.stock_step
            if any(c.seconds <= enough and c.peak <= (1 + TOLERANCE) * peak for c in found):
                break

    def _rounded(self, saved: Mapping[int, float], shares: Sequence[float]) -> Iterator[Candidate]:
        """The candidates that save the values with at least some share.  saved: the share of each."""
        for least in shares:
            chosen = frozenset(v for v, share in saved.items() if share >= least and self.candidates.may_save(v))
            for copies in dict.fromkeys((Copies.NONE, self.candidates.copies)) if chosen else ():
                candidate = self.candidates.of(chosen, copies)
                if candidate is not None:
                    yield candidate
