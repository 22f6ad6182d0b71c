"""The minimum cut against every subset of small graphs, and against networkx on larger ones."""

from __future__ import annotations

import dataclasses
import itertools
import math

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.planner.cut import SavedSetCut, Uncuttable, needed_values
from tests.support.facts import SETTINGS, again, chain, graphs, subsets


@settings(SETTINGS, max_examples=100)
@given(graphs(), st.sampled_from((0.01, 0.1, 0.5, 1.0, 3.0, 100.0)))
def test_the_cut_is_the_best_of_all_subsets(facts, price):
    cut = SavedSetCut(facts).at(price)
    best = min(seconds + price * size for _, size, seconds in subsets(facts))
    assert again(facts, cut.saved) == pytest.approx(cut.seconds)
    assert cut.bytes == sum(facts.values[i].bytes for i in cut.saved)
    assert cut.seconds + price * cut.bytes == pytest.approx(best, rel=1e-6)


@settings(SETTINGS, max_examples=30)
@given(graphs(most=40), st.sampled_from((0.01, 0.1, 0.5, 1.0, 3.0, 100.0)))
def test_the_cut_of_larger_graphs_costs_what_networkx_finds(facts, price):
    """A graph of its own, drawn from the definition: too many subsets to try them all."""
    graph = networkx.DiGraph()
    needed = set(needed_values(facts))
    for v in needed:
        value = facts.values[v]
        graph.add_edge("source", ("in", v), capacity=math.inf if value.fixed else value.seconds)
        graph.add_edge(("in", v), ("out", v), capacity=price * value.bytes)
        graph.add_edges_from(
            (("out", read), ("in", v), {"capacity": math.inf}) for read in needed.intersection(value.inputs)
        )
    for v in needed.intersection(read for b in facts.backward for read in facts.values[b].inputs):
        graph.add_edge(("out", v), "sink", capacity=math.inf)
    cut = SavedSetCut(facts).at(price)
    assert cut.seconds + price * cut.bytes == pytest.approx(
        networkx.minimum_cut_value(graph, "source", "sink"), rel=1e-6
    )


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
