"""The minimum cut against every subset of small graphs."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.planner.cut import SavedSetCut, Uncuttable
from tests.support.facts import SETTINGS, again, chain, graphs, subsets


@settings(SETTINGS, max_examples=100)
@given(graphs(), st.sampled_from((0.01, 0.1, 0.5, 1.0, 3.0, 100.0)))
def test_the_cut_is_the_best_of_all_subsets(facts, price):
    cut = SavedSetCut(facts).at(price)
    best = min(seconds + price * size for _, size, seconds in subsets(facts))
    assert again(facts, cut.saved) == pytest.approx(cut.seconds)
    assert cut.bytes == sum(facts.values[i].bytes for i in cut.saved)
    assert cut.seconds + price * cut.bytes == pytest.approx(best, rel=1e-6)


@settings(SETTINGS, max_examples=60)
@given(graphs())
def test_a_dearer_byte_is_saved_less(facts):
    cut = SavedSetCut(facts)
    prices = cut.prices(1e-3, 1e3, 8)
    assert prices == sorted(prices) and 1 <= len(prices) <= 8
    cuts = [cut.at(price) for price in prices]
    for cheap, dear in itertools.pairwise(cuts):
        assert cheap.bytes >= dear.bytes and cheap.seconds <= dear.seconds + 1e-9


def test_what_can_be_neither_held_nor_computed_again():
    facts = chain([((0,), 8, 1.0, True, "draws")])
    values = list(facts.values)
    values[1] = dataclasses.replace(values[1], savable=False)
    with pytest.raises(Uncuttable):
        SavedSetCut(dataclasses.replace(facts, values=tuple(values))).at(1.0)


def test_a_forward_output_is_held_for_nothing():
    nodes = [((0,), 100, 1.0, True, ""), ((1,), 100, 1.0, True, "")]
    assert SavedSetCut(chain(nodes)).at(1.0).saved == frozenset()
    assert SavedSetCut(chain(nodes, outputs=(1,))).at(1.0).saved == {1}
