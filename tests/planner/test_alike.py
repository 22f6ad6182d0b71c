"""Plans in which equal layers take few strategies."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.planner.alike import places, strategies
from memgraph.planner.solve import Planner
from tests.support.facts import chain

LAYERS = 12
# Bytes and seconds of the values of one layer.
LAYER = ((100, 3e-6), (20, 2e-6), (100, 3e-6), (60, 3e-6), (60, 8e-6), (40, 8e-6), (40, 2e-6), (40, 1e-9))


def deep(layers: int = LAYERS, alike: bool = True, uneven: bool = False) -> JointFacts:
    """A chain of equal layers.  uneven: they take other times, as layers with other shapes would."""
    nodes = [((n,), 10, 1e-6, True, "") for n in range(2)]
    for layer in range(layers):
        for size, seconds in LAYER:
            nodes.append(((len(nodes),), size, seconds * (1 + uneven * (layer % 5) / 10), True, ""))
    facts = chain(nodes, regions=layers)
    classes = tuple(tuple(3 + layer * len(LAYER) + place for place in range(len(LAYER))) for layer in range(layers))
    return dataclasses.replace(facts, alike=(classes,) if alike else ())


def kinds(facts: JointFacts, candidate) -> int:
    return len(set(strategies(facts, candidate.schedule.saved)[0]))


@pytest.mark.parametrize("percent", [40, 50, 60, 70, 85])
@pytest.mark.parametrize("uneven", [False, True])
def test_layers_take_three_strategies_at_most(percent, uneven):
    facts = deep(uneven=uneven)
    planner, free = (Planner(some, fused=False) for some in (facts, dataclasses.replace(facts, alike=())))
    bound = planner.stock.peak * percent // 100
    found, other = planner.best(bound), free.best(bound)
    assert found is not None and other is not None
    assert found.peak <= bound and kinds(facts, found) <= 3
    once = sum(value.seconds for value in facts.values)
    assert once + found.seconds <= 1.02 * (once + other.seconds)


def test_layers_that_are_free_take_more():
    """Otherwise the test above says nothing."""
    facts = deep(uneven=True)
    free = Planner(dataclasses.replace(facts, alike=()), fused=False)
    found = [free.best(free.stock.peak * percent // 100) for percent in range(40, 90, 5)]
    assert max(kinds(facts, candidate) for candidate in found if candidate is not None) > 3


def test_where_layers_cannot_be_alike_they_are_not():
    """A bound that only the lowest plan keeps is kept by it, whatever its strategies."""
    facts = deep()
    planner = Planner(facts, fused=False)
    lowest = planner.smallest()
    assert planner.alike is not None
    found = planner.best(lowest.peak)
    assert found is not None and found.peak <= lowest.peak


def test_without_layers_nothing_changes():
    facts = deep(alike=False)
    assert Planner(facts, fused=False).alike is None


def test_values_by_class_layer_and_place():
    facts = deep(layers=4)
    assert places(facts)[3 + 2 * len(LAYER) + 1] == (0, 2, 1)
    assert 0 not in places(facts) and len(places(facts)) == 4 * len(LAYER)
    assert strategies(facts, {3, 3 + len(LAYER), 0})[0] == [{0}, {0}, frozenset(), frozenset()]
