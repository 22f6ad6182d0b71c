"""Saved sets near the optimum of the linear program that bounds all plans (bound.py).

Problem: a cut at one price a byte (uniform.py) knows sums of bytes. The linear program also knows at which operators
the bytes stand, so it saves late values and drops early ones where that is better, and prices each layer by itself.

Why not a library: HiGHS has solved the program; what is left is to round its shares to decisions. They are almost all 0
or 1: of 500 values of a Llama of 8 layers, 1 to 6 are in between.

Algorithm: solve it for a few peaks, from the least that it allows to Inductor's own. Save all values that have a share,
or those that are saved whole. A sweep tells what each set really takes. None of them depends on a bound, so a lower
bound finds no plan that a higher one would have missed.

Oracle: tests/properties/test_plans.py compares the planner with every saved set of small graphs (test_brute_force).
"""

from __future__ import annotations

import functools

import numpy as np

from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import Candidate, Candidates, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.offload import Tiers

# Peaks for which the program is solved.
PEAKS = 6
# A larger graph takes too long, and gains little: with many layers a mixture of two uniform choices comes near enough.
# Llama at 60 % of its peak: 1.8 % above the bound with 8 layers (1,705 values), 0.6 % with 32 (6,433).
MOST_VALUES = 2_500
# An optimum may pass its peak by this share: the sweep tells what is really taken, and a program without the rows that
# are broken by less takes half the time (Llama of 12 layers: 21,000 rows in place of 29,000, with costs that are equal
# to 0.1 %).
TOLERANCE = 0.05
# Each of these makes a saved set: the values with at least this share.
SHARES = (0.01, 0.99)


class Relaxed:
    """Candidates of one joint graph by its linear program."""

    def __init__(self, candidates: Candidates, tiers: Tiers | None = None) -> None:
        self.candidates, self.tiers = candidates, tiers

    @functools.cached_property
    def found(self) -> tuple[Candidate, ...]:
        """All of them, fastest first."""
        if len(self.candidates.facts.values) > MOST_VALUES:
            return ()
        # A program of its own: the rows of a shared one would depend on what others have asked before.
        bounds = LowerBounds(self.candidates, self.tiers, TOLERANCE)
        kinds = dict.fromkeys((Copies.NONE, self.candidates.copies))
        found: dict[int, Candidate] = {}
        # The bound is a little below the least peak that the program has a solution for.
        least_peak = (1 + 1e-4) * bounds.smallest() + 1
        for peak in np.linspace(least_peak, max(least_peak, self.candidates.stock.peak), PEAKS):
            shares = bounds.shares(int(peak))
            for least in SHARES:
                saved = frozenset(v for v, share in shares.items() if share >= least and self.candidates.may_save(v))
                for copies in kinds if saved else ():
                    candidate = self.candidates.of(saved, copies)
                    if candidate is not None:
                        found[id(candidate)] = candidate
        return tuple(sorted(found.values(), key=by_time))
