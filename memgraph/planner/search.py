"""How many layers must take the smaller strategy, with few sweeps.

Problem: peaks fall with the number n of layers that take it, about evenly. Which is the smallest n that fits a bound?

Why not a library: bracketing root finders (scipy's brentq, toms748) look for a real root of a continuous function, and
spend most of their calls on digits that a whole number does not have.

Algorithm: regula falsi on whole numbers, between a number that is known to be too few and one that is known to fit.
Where a guess has not halved what is between them, the next is the middle, so it never takes more than about twice the
steps of bisection; of peaks that fall evenly it takes two or three.

Oracle: tests/planner/test_search.py compares it with a walk over all numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from memgraph.planner.candidates import Candidate


def fewest_that_fit(
    at: Callable[[int], Candidate | None], few: tuple[int, int], many: tuple[int, int], bound: int
) -> list[Candidate]:
    """What was tried: among it the candidate of the smallest number below `many` whose peak is at most `bound`.

    at: the candidate of a number; None where there is none, which counts as one that does not fit.
    few: a number and its peak, which passes the bound.  many: a larger one and its peak, which fits. Neither is tried.
    """
    (low, above), (high, below) = few, many
    tried: list[Candidate] = []
    middle = False
    while high - low > 1:
        between = high - low
        # In whole numbers: 29 / 108 of 108 layers are 29, and rounded up from a float 30.
        part, whole = (1, 2) if middle or above <= below else (above - bound, above - below)
        number = min(max(low - (-part * between // whole), low + 1), high - 1)
        found = at(number)
        if found is not None:
            tried.append(found)
        if found is not None and found.peak <= bound:
            high, below = number, found.peak
        else:
            low, above = number, above if found is None else found.peak
        middle = not middle and 2 * (high - low) > between
    return tried
