"""What seems to have room beside a candidate, and what is saved since it seems so."""

from __future__ import annotations

import math

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.planner import polish
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.room import Room
from tests.support.facts import chain


def candidates_of(*sizes: int) -> Candidates:
    """A chain of values of these bytes, numbered from 1, each read by the backward."""
    facts = chain([((n,), size, 1.0, True, "") for n, size in enumerate(sizes)])
    return Candidates(facts, fused=False, copies=Copies.NONE)


def saving(candidates: Candidates, *saved: int) -> Candidate:
    found = candidates.of(frozenset(saved))
    assert found is not None
    return found


def least_bound(facts: JointFacts, base: Candidate, value: int) -> int:
    """The least bound that the base keeps and under which a value seems to have room."""
    bounds = range(base.peak, 2 * sum(other.bytes for other in facts.values))
    return next(bound for bound in bounds if Room(facts, base, bound).take([value], math.inf) is not None)


@pytest.mark.parametrize(
    ("sizes", "saved", "value"),
    [
        ((100, 10, 10, 10), (1, 3), 2),
        ((100, 10, 10, 10), (1, 3), 4),  # it is there before the peak in any case
        ((10, 10, 10, 100), (1, 3), 2),
        ((10, 60, 10, 20), (1,), 2),
        ((10,) * 6, (1, 2, 3), 4),
    ],
)
def test_the_guess_is_what_the_sweep_says(sizes, saved, value):
    candidates = candidates_of(*sizes)
    base, more = saving(candidates, *saved), saving(candidates, *saved, value)
    assert least_bound(candidates.facts, base, value) == more.peak


def test_values_of_a_unit_have_room_together_or_not_at_all():
    candidates = candidates_of(100, 10, 10, 10)
    base = saving(candidates, 1, 3)
    room = Room(candidates.facts, base, base.peak + 9)
    before = room.forward.copy(), room.backward.copy()
    assert room.take([4, 2], math.inf) is None and room.take([4], 9) is None
    assert (room.forward == before[0]).all() and (room.backward == before[1]).all()
    assert room.take([4], 10) == 10  # the last of the forward, so it takes nothing there
    assert (room.forward == before[0]).all() and (room.backward < before[1]).any()


def test_what_stands_anyway_at_the_peak_is_saved_though_no_byte_is_free():
    candidates = candidates_of(100, 10, 10, 10)
    base = saving(candidates, 1, 3)
    found = polish.fill(candidates, base, base.peak)
    assert set(found.schedule.saved) == {1, 3, 4} and found.peak <= base.peak and found.seconds < base.seconds


class _Fewer:
    """Candidates, of which those that save more than some values are not to be had."""

    def __init__(self, candidates: Candidates, most: int) -> None:
        self.candidates, self.most = candidates, most
        self.facts, self.may_save = candidates.facts, candidates.may_save

    def of(self, saved: frozenset[int], copies: Copies) -> Candidate | None:
        return None if len(saved) > self.most else self.candidates.of(saved, copies)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_where_a_guess_is_wrong_less_is_saved(most):
    candidates = candidates_of(*[10] * 8)
    base = saving(candidates, 1)
    found = polish.with_all_that_fit(
        _Fewer(candidates, most),  # type: ignore[arg-type]
        base,
        candidates.stock.peak * 2,
        lambda best: [frozenset((i,)) for i in polish.worth_saving(candidates, best)],
    )
    assert len(found.schedule.saved) == most
