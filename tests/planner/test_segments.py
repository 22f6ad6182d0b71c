"""Borders of recomputation against every choice of them, and chains against dynamic programming."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts
from memgraph.planner.segments import SegmentCosts
from memgraph.planner.solve import Planner
from tests.support.facts import SETTINGS, chain, subsets
from tests.support.lanes import examples, slow_but


def chain_of(length: int) -> JointFacts:
    return chain([((n,), 100, 1e-6, True, "") for n in range(length)], regions=length)


@pytest.mark.parametrize("length", slow_but((16, 36, 64, 144, 256), fast=(16, 36, 64)))
def test_a_chain_reaches_the_optimum(length):
    """Of all choices of borders, each value computed again at most once: about sqrt(2 n) values of n."""
    planner = Planner(chain_of(length))
    smallest = planner.smallest()
    assert smallest.peak <= 100 * (fewest(length) + 1)
    assert smallest.seconds <= length * 1e-6


def fewest(length: int) -> int:
    """The least number of values of a chain that must be live at once, borders included, by any borders."""
    # least[rest][borders]: for the last `rest` values, behind that many borders. A segment has its values and borders.
    least = [[0] * (length + 2)]
    for rest in range(1, length + 1):
        row = [
            min(max(borders + segment, least[rest - segment][borders + 1]) for segment in range(1, rest + 1))
            for borders in range(length - rest + 1)
        ]
        least.append(row)
    return least[length][0]


@settings(SETTINGS, max_examples=examples(25))
@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_borders_of_an_uneven_chain_against_every_saved_set(sizes):
    facts = chain([((n,), 100 * size, 1e-6, True, "") for n, size in enumerate(sizes)], regions=len(sizes))
    planner = Planner(facts)
    every = [planner.candidates.of(frozenset(saved)) for saved, _, _ in subsets(facts)]
    best = min(candidate.peak for candidate in every if candidate is not None)
    # The costs of segments take a segment's recomputation to begin before its last operator gives up its own value.
    assert best <= planner.smallest().peak <= best + 100 * max(sizes)


@settings(SETTINGS, max_examples=examples(60))
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.data())
def test_borders_against_every_choice_of_them(sizes, data):
    """The least limit that works, and the least held under a limit, among all sets of borders."""
    count = len(sizes)
    again = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    crossing, peak = np.zeros((count, count)), np.full((count, count), -np.inf)
    for first in range(count):
        for last in range(first, count):
            peak[first, last] = sum(sizes[first : last + 1]) + again[last]
            crossing[first, last] = 0 if first == last else sizes[last - 1]
    peak = np.maximum.accumulate(peak, axis=1)
    costs = SegmentCosts(crossing, peak)

    def level(borders: tuple[int, ...]) -> float:
        held, highest = 0.0, 0.0
        for first, after in itertools.pairwise((0, *borders, count)):
            highest = max(highest, held + peak[first, after - 1])
            held += crossing[first, after] if after < count else 0.0
        return highest

    choices = [b for size in range(count) for b in itertools.combinations(range(1, count), size)]
    best = min(map(level, choices))
    lowest = costs.lowest()
    assert best <= lowest <= best * (1 + 1e-6) + 1e-6
    assert level(costs.borders(lowest)) == pytest.approx(best)
    assert costs.borders(best * 0.99 - 1e-3) is None
