"""Candidates of the linear program, and how loose it may be."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.planner import solve
from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.relaxed import Relaxed
from memgraph.planner.solve import Planner
from tests.support.facts import chain

SIZES = (100, 20, 60, 40)
SECONDS = (3e-6, 2e-6, 8e-6, 1e-6)


def deep(layers: int = 8):
    nodes = [((n,), SIZES[n % 4], SECONDS[n % 4], True, "") for n in range(4 * layers)]
    facts = chain(nodes, regions=layers)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    return dataclasses.replace(facts, values=movable)


def saved(found: tuple[Candidate, ...]) -> list[tuple[int, ...]]:
    return [candidate.schedule.saved for candidate in found]


def test_a_higher_bound_has_all_of_a_lower_one_and_what_is_asked_before_changes_nothing():
    facts = deep()
    bounds = [Candidates(facts, fused=False).stock.peak * percent // 100 for percent in (100, 70, 40, 0)]
    falling, found = Relaxed(Candidates(facts, fused=False)), []
    for bound in bounds:
        found.append(saved(falling.under(bound)))
        assert found[-1] == saved(Relaxed(Candidates(facts, fused=False)).under(bound))
    assert all(set(less) <= set(more) for more, less in zip(found, found[1:], strict=False))
    assert len(found[0]) > len(found[-1]) > 0


def test_a_looser_program_bounds_no_higher():
    candidates = Candidates(deep(), fused=False)
    tight, loose = LowerBounds(candidates), LowerBounds(candidates, tolerance=0.5)
    for percent in range(40, 100, 10):
        bound = candidates.stock.peak * percent // 100
        least, looser = tight.under(bound), loose.under(bound)
        if least is None:
            continue
        assert looser is not None and looser.seconds <= least.seconds + 1e-6 * candidates.stock_step
    assert loose.smallest() <= tight.smallest()
    assert len(loose.relaxation.program.least) < len(tight.relaxation.program.least)


@pytest.mark.parametrize("most", [0, solve.MOST_VALUES], ids=["large", "in between"])
def test_without_tiers_first_is_not_slower(most, monkeypatch):
    """As in large graphs, and where tiers bring nothing by the bound."""
    monkeypatch.setattr(solve, "SMALL", 0)
    monkeypatch.setattr(solve, "MOST_VALUES", most)
    facts = deep()
    slow, fast = (Planner(facts, fused=False, offload=Tiers((Tier("host", r, r, drag=0.5),))) for r in (1e5, 1e12))
    alone = Planner(facts, fused=False)
    first = 0
    for percent in range(40, 100, 10):
        bound = alone.stock.peak * percent // 100
        kept = alone.best(bound)
        for planner in (slow, fast):
            first += planner._goes_without_tiers_first(bound)
            found = planner.best(bound)
            assert found is not None or kept is None
            if found is None or kept is None:
                continue
            assert found.peak <= bound and found.seconds <= kept.seconds + 1e-12
            if planner is slow:
                assert not found.moves
    assert first
