"""How fast any plan of a graph can be under a budget, and how little memory any plan can take: proven lower bounds.

Problem: the planner searches (solve.py). How much could a better search still find? Every plan of this kind (one order
of the forward and of the backward; values saved, computed again, or copied to a tier and back) satisfies these:

    needed    a value that the backward reads is saved or computed again; what is computed again has its inputs saved or
              computed again
    peak      at every operator of either direction, what surely stands there fits: saved values that are still to be
              read, values computed again that are still to be read, and what every plan holds anyway (moments.py)
    links     a tier's copies in one direction go one after another, and the step waits for what does not fit beside its
              operators; a tier holds no more than its capacity

They are linear in the shares of a value that are saved, computed again and copied away. The least time over all shares
bounds the time of every plan from below.

Which library: HiGHS solves the linear program (linear.py). Its price of the peak is what one more byte of
the budget is worth, in seconds.

Algorithm: a variable for each needed value and what may be done with it; for the fullest operator of each region also
one for each value that may have been computed again by then. What a plan might avoid is left out: kernels that might be
fused, a second copy of a value, the window of bytes under way. That makes the bound lower and never wrong.

Oracle: tests/properties/test_bounds.py: among all saved sets of small random graphs, with copies at any rate, none is
faster or smaller than its bound.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from memgraph.planner.candidates import Candidates
from memgraph.planner.leaving import Tiers
from memgraph.planner.levels import backward_levels, forward_levels
from memgraph.planner.linear import ACCURACY, NotSolved, Solution
from memgraph.planner.relaxation import Relaxation
from memgraph.planner.remade import Remade

# How often rows are added that an optimum breaks.
ROUNDS = 6
# And for how many operators of the backward at a time, where the program is not a coarse one.
MOST_REFINED = 4


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """What no plan under a budget can beat."""

    seconds: float
    """Time of every plan beyond Inductor's own choice, at least."""
    price: float
    """Seconds that one more byte of the budget would save, by the relaxation."""


class LowerBounds:
    """Lower bounds for the plans of one joint graph with these tiers, for any budget."""

    def __init__(
        self, candidates: Candidates, tiers: Tiers | None = None, tolerance: float = 0.0, *, coarse: bool = False
    ) -> None:
        """candidates: of the graph; whether they are swept as Inductor allocates decides how bytes are counted.

        tolerance: the share of a peak by which an optimum may pass it at operators whose rows are then left out. The
        bound is a bound all the same, and a little lower.
        coarse: leave out what it costs that fused operators compute values again (remade.py): lower as well, and found
        in less time.
        """
        self.facts, self.stock = candidates.facts, candidates.stock
        self.stock_time = candidates.stock_time
        self.tolerance = tolerance
        unit = float(max(1, self.stock.peak))
        self.relaxation = Relaxation(candidates, tiers, unit)
        self.remade = None if coarse else Remade(self.relaxation, fused=candidates.fused)

    def under(self, bound: int) -> LowerBound | None:
        """The bound on the time of plans with a peak of at most `bound` bytes; None where no plan has such a peak.

        Where the program cannot be solved, the bound is the time without any recomputation.
        """
        fits = self.stock.peak <= bound
        try:
            found = self._optimum(self.relaxation.program.cost, bound / self.relaxation.unit)
        except NotSolved:
            return LowerBound(-self.stock_time, 0.0)
        if found is None:
            return LowerBound(0.0, 0.0) if fits else None
        seconds = (found.cost - ACCURACY) * self.relaxation.second - self.stock_time
        rows = [*self.relaxation.peak_rows.values(), *(row for _, row in self.relaxation.narrows.values())]
        price = sum(float(found.prices[row]) for row in rows)
        price *= self.relaxation.second / self.relaxation.unit
        return LowerBound(min(0.0, seconds) if fits else seconds, price)

    def optimum(self, bound: int) -> tuple[float, dict[int, float]] | None:
        """The least seconds beyond Inductor's own choice under a bound; by value, the share of it that is saved then.

        None where no plan has such a peak, or the program cannot be solved.
        """
        try:
            found = self._optimum(self.relaxation.program.cost, bound / self.relaxation.unit)
        except NotSolved:
            return None
        if found is None:
            return None
        shares = {v: float(found.values[column]) for v, column in self.relaxation.saved.items()}
        return found.cost * self.relaxation.second - self.stock_time, shares

    def smallest(self) -> int:
        """Bytes above the baseline that every plan takes at its peak, at least; 0 where the program is not solved."""
        try:
            found = self._optimum(None, np.inf)
        except NotSolved:
            return 0
        least = self.stock.peak if found is None else int((found.cost - ACCURACY) * self.relaxation.unit)
        return min(self.stock.peak, least)

    def _optimum(self, cost: Sequence[float] | None, peak: float) -> Solution | None:
        """The least cost under a peak, or the least peak where no cost is given.

        There are too many operators for a row of each: those that an optimum breaks are added, and it is found again.
        """
        program = self.relaxation.program
        for left in reversed(range(ROUNDS)):
            costs = [0.0] * len(program.cost) if cost is None else list(program.cost)
            costs[self.relaxation.peak] = 1.0 if cost is None else 0.0
            most = list(program.most)
            most[self.relaxation.peak] = peak
            found = program.solve(costs, most, kind=cost is None)
            if found is None or not left or not self._add_broken(found.values):
                break
        return found

    def _add_broken(self, values: np.ndarray) -> bool:
        """Add rows of operators at which more stands than the peak: the fullest of each region."""
        most = values[self.relaxation.peak] * (1 + self.tolerance) + 10 * ACCURACY
        forward = [
            place
            for place in self._worst(self.facts.forward, forward_levels(self.relaxation, values), most)
            if (False, place) not in self.relaxation.peak_rows
        ]
        for place in forward:
            self.relaxation.forward_row(place)
        levels = backward_levels(self.relaxation, values, self.remade)
        refined = map(self._refine, self._worst(self.facts.backward, levels, most))
        found = list(itertools.islice(filter(None, refined), None if self.remade is None else MOST_REFINED))
        return bool(forward or found)

    def _refine(self, place: int) -> bool:
        """Add to the rows of an operator of the backward; false where that was done before, or takes too much."""
        if not self.relaxation.refine(place):
            return False
        if self.remade is not None:
            self.remade.refine(place)
        return True

    def _worst(self, order: Sequence[int], levels: np.ndarray, most: float) -> list[int]:
        """The fullest place of each region at which more than `most` stands, in units; the fullest first."""
        worst: dict[int, int] = {}
        for place in np.flatnonzero(levels > most).tolist():
            region = self.facts.values[order[place]].region
            if region not in worst or levels[place] > levels[worst[region]]:
                worst[region] = place
        return sorted(worst.values(), key=lambda place: -levels[place])
