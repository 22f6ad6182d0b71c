"""The search for the lowest peak: which changes it tries, and where it ends."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given

from memgraph.facts.joint import JointFacts
from memgraph.planner import lowest as search
from memgraph.planner import solve
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.lowest import lowest
from memgraph.planner.polish import changes
from memgraph.planner.solve import Planner
from tests.support.facts import SETTINGS, chain, graphs, value


def candidates_of(*sizes: int, fused: bool = False) -> Candidates:
    """A chain of values of these bytes, numbered from 1, each read by the backward."""
    facts = chain([((n,), size, 1.0, True, "") for n, size in enumerate(sizes)])
    return Candidates(facts, fused=fused, copies=Copies.NONE)


def saving(candidates: Candidates, *saved: int) -> Candidate:
    found = candidates.of(frozenset(saved))
    assert found is not None
    return found


class _Counted:
    """Candidates that note which saved sets are asked for."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates, self.asked = candidates, []

    def __getattr__(self, name: str):
        return getattr(self.candidates, name)

    def of(self, saved, copies=None):
        self.asked.append(saved)
        return self.candidates.of(saved, copies)


@pytest.fixture
def large(monkeypatch):
    """Every graph counts as one of which not all changes are tried."""
    monkeypatch.setattr(search, "SMALL", 0)


def test_what_stands_at_the_peak_is_dropped(large):
    candidates = candidates_of(100, 10, 10, 10, 10, 10)
    start = saving(candidates, 1, 2, 3, 4, 5, 6)
    assert lowest(candidates, [start]).peak < start.peak


def test_what_does_not_stand_at_the_peak_is_not_tried(large):
    """The step reaches most where the large value stands: what is saved later is not there yet, or gone."""
    candidates = _Counted(candidates_of(10, 300, 10, 10, 10, 10))
    start = saving(candidates.candidates, 1, 3, 4, 5, 6)
    found = lowest(candidates, [start])
    assert found.peak <= start.peak and candidates.asked
    assert all({4, 5, 6} <= saved for saved in candidates.asked)


@SETTINGS
@given(graphs())
def test_it_ends_where_no_change_helps(facts):
    candidates = Candidates(facts, fused=False)
    start = candidates.stock
    found = lowest(candidates, [start])
    assert found.peak <= start.peak
    others = [candidates.of(saved, found.schedule.copies) for saved in changes(candidates, found)]
    assert all(other is None or other.peak >= found.peak for other in others)


def test_equal_peaks_lead_on_from_each_kind_of_copies():
    """The lowest peak is no higher than what any kind of copies leads to from its own lowest choice."""
    facts = chain([((n,), 50 if n % 3 else 100, 1e-6, True, "") for n in range(24)], regions=8)
    planner = Planner(facts)
    assert planner.uniform is not None
    swept = [candidate for _, candidate in planner.uniform.swept]
    for kind in {candidate.schedule.copies for candidate in swept}:
        start = min((c for c in swept if c.schedule.copies is kind), key=lambda c: c.peak)
        assert planner.smallest().peak <= lowest(planner.candidates, [start]).peak


@given(graphs())
@SETTINGS
def test_inductors_own_choice_as_a_plan_saves_the_same_and_is_written_anew(facts):
    planner = Planner(facts)
    ours = planner.stock_in_order
    assert planner.stock.stock and not ours.stock
    assert ours.schedule.saved == planner.stock.schedule.saved
    assert ours.schedule.recomputed == planner.stock.schedule.recomputed


def test_a_thorough_search_saves_what_is_made_of_a_value_instead(large):
    """The skip waits for the last operator, beside a large value; the join that is made of it goes with the first."""
    values = [
        value("x", "primal", at=0, size=8),
        value("skip", "extern", 0, at=1, size=50, seconds=1.0),
        value("join", "extern", 1, at=2, size=60, seconds=1.0),
        value("y", "extern", 2, at=3, size=8, seconds=1.0),
        value("dz", "tangent", at=4, size=8),
        value("first", "extern", 4, 2, at=5, size=8, seconds=1.0),
        value("large", "extern", 5, at=6, size=80, seconds=1.0),
        value("next", "extern", 6, at=7, size=8, seconds=1.0),
        value("last", "extern", 7, 1, at=8, size=8, seconds=1.0),
    ]
    facts = JointFacts(tuple(values), (1, 2, 3), (5, 6, 7, 8), (3,), (8,), frozenset((1,)), ("0",))
    candidates = Candidates(facts, fused=False, copies=Copies.NONE)
    start = saving(candidates, 1)
    assert lowest(candidates, [start]).peak == start.peak
    found = lowest(candidates, [start], thorough=True)
    assert found.peak < start.peak and found.schedule.saved == (0, 2)


@given(graphs())
@SETTINGS
def test_who_has_looked_longer_goes_no_higher_and_looks_once(facts):
    planner = Planner(facts)
    assert planner.thorough() is planner  # of a small graph
    with mock.patch.object(solve, "SMALL", 0):
        thorough = planner.thorough()
    assert thorough is not planner
    assert thorough.smallest().peak <= planner.smallest().peak
    assert thorough.thorough() is thorough
