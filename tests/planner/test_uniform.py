"""Rows of borders: what a large graph leaves out of them."""

from __future__ import annotations

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.planner import uniform
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.uniform import UniformChoices
from tests.support.facts import chain


def deep(large: int) -> JointFacts:
    """A chain of 24 regions of two values, of which every third region's are large."""
    nodes = []
    for n in range(48):
        nodes.append(((n,), large if n // 2 % 3 == 0 else 30, 1e-6 * (1 + n % 5), True, ""))
    return chain(nodes, regions=24)


def swept(facts: JointFacts) -> dict:
    return dict(UniformChoices(Candidates(facts)).swept)


@pytest.mark.parametrize("large", [30, 60, 200])
def test_a_large_graph_leaves_out_what_lies_between(monkeypatch, large):
    every = swept(deep(large))
    monkeypatch.setattr(uniform, "LARGE", 0)
    some = swept(deep(large))
    assert every.items() >= some.items() and len(some) < len(every)
    # Of each row, the borders at all regions and both ends are there.
    assert {choice for choice in every if len(choice.borders) in (0, 23)} <= some.keys()
    assert min(c.peak for c in some.values()) <= 1.05 * min(c.peak for c in every.values())


def test_a_choice_between_two_that_differ_is_tried(monkeypatch):
    """Otherwise rows would be their ends alone."""
    monkeypatch.setattr(uniform, "LARGE", 0)
    monkeypatch.setattr(uniform, "_beats", lambda one, other: False)
    monkeypatch.setattr(uniform, "_hardly_differ", lambda one, other: False)
    some = swept(deep(60))
    monkeypatch.undo()
    every = swept(deep(60))
    assert some.keys() == every.keys() and all(isinstance(c, Candidate) for c in some.values())
