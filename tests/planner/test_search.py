"""The smallest number that fits, against a walk over all of them."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import example, given
from hypothesis import strategies as st

from memgraph.planner.search import fewest_that_fit


@dataclasses.dataclass(frozen=True)
class Swept:
    peak: int


def searched(peaks: list[int], bound: int) -> tuple[int | None, int]:
    """The smallest number that was found to fit, and how many were tried.  peaks: of 0, 1, ...; the first passes."""
    asked: list[int] = []

    def at(number: int) -> Swept:
        asked.append(number)
        return Swept(peaks[number])

    fewest_that_fit(at, (0, peaks[0]), (len(peaks) - 1, peaks[-1]), bound)
    return min((n for n in asked if peaks[n] <= bound), default=None), len(asked)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=70), st.data())
def test_it_is_the_smallest_of_falling_peaks(falls, data):
    peaks = [sum(falls[n:]) for n in range(len(falls) + 1)]
    bound = data.draw(st.integers(0, max(0, peaks[0] - 1)))
    if peaks[0] <= bound:
        return
    smallest = next(n for n, peak in enumerate(peaks) if peak <= bound)
    found, tries = searched(peaks, bound)
    assert (found or len(falls)) == smallest
    assert tries <= 2 * math.ceil(math.log2(len(peaks))) + 1


@given(st.integers(2, 200), st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
@example(108, 1, 79 / 108)  # 29 layers are a share of all that, as a float, is a little more
def test_of_peaks_that_fall_evenly_it_takes_two_or_three(layers, fall, share):
    peaks = [(layers - n) * fall for n in range(layers + 1)]
    found, tries = searched(peaks, min(round(share * peaks[0]), peaks[0] - 1))
    assert tries <= 3


@given(st.lists(st.booleans(), min_size=3, max_size=40))
def test_numbers_without_a_candidate_are_passed_over(there):
    high = len(there)
    asked: list[int] = []

    def at(number: int) -> Swept | None:
        asked.append(number)
        return Swept(0) if there[number] else None

    tried = fewest_that_fit(at, (-1, 1), (high, 0), 0)
    assert len(tried) == sum(there[n] for n in asked) and len(asked) == len(set(asked))
    assert all(0 <= n < high for n in asked)
