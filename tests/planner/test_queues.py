"""Copies on a clock of their own: the step never waits longer than `place` predicts."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts
from memgraph.planner.queues import Clock, Placement, Tier, place
from memgraph.planner.schedule import Schedule, make_schedule
from tests.support.facts import SETTINGS, chain, value


def played(facts: JointFacts, schedule: Schedule, placed: Placement, rates: dict[str, Tier]) -> float:
    """Seconds that the step waits when each copy starts as early as it may, one after another on each link."""
    return _forward(facts, schedule, placed, rates) + _backward(facts, schedule, placed, rates)


def _forward(facts: JointFacts, schedule: Schedule, placed: Placement, rates: dict[str, Tier]) -> float:
    program, moves = schedule.forward, {move.value: move for move in placed.moves}
    now = work = 0.0
    ends: dict[int, float] = {}
    free: dict[str, float] = {}
    for slot, v in enumerate(program.values):
        seconds = facts.values[v].seconds if slot >= program.inputs else 0.0
        now, work = now + seconds, work + seconds
        if v in moves:
            tier = rates[moves[v].tier]
            start = max(now, free.get(tier.name, 0.0))
            ends[v] = free[tier.name] = start + facts.values[v].bytes / tier.out
        due = [ends[move.value] for move in placed.moves if move.finish == slot]
        now = max([now, *due])
    return max([now, *ends.values()]) - work


def _backward(facts: JointFacts, schedule: Schedule, placed: Placement, rates: dict[str, Tier]) -> float:
    program = schedule.backward
    now = work = 0.0
    ends: dict[int, float] = {}
    free: dict[str, float] = {}
    for step, v in enumerate(program.values[program.inputs :]):
        for move in sorted(placed.moves, key=lambda move: move.use):
            if move.load == step:
                tier = rates[move.tier]
                start = max(now, free.get(tier.name, 0.0))
                ends[move.value] = free[tier.name] = start + facts.values[move.value].bytes / tier.back
        now = max([now, *(ends[move.value] for move in placed.moves if move.use == step)])
        now, work = now + facts.values[v].seconds, work + facts.values[v].seconds
    return now - work


def test_what_is_written_to_memory_stays_so_beside_copies():
    """A value that is brought back takes a place in the program, and the steps behind it another one."""
    values = [
        value("x", "primal", at=0, size=8),
        value("y", "extern", 0, at=1, size=8, seconds=1.0),
        value("r", "pointwise", at=2, size=8, seconds=0.1),
        dataclasses.replace(value("m", "pointwise", 2, at=3, size=2, seconds=0.1), masks=True),
        value("kept", "pointwise", 1, 3, at=4, size=8, seconds=0.1),
        value("z", "extern", 4, at=5, size=8, seconds=1.0),
        value("dz", "tangent", at=6, size=8),
        value("b", "extern", 4, 6, at=7, size=8, seconds=1.0),
        value("dy", "pointwise", 3, 7, at=8, size=8, seconds=0.1),
        value("dx", "extern", 0, 8, at=9, size=8, seconds=1.0),
    ]
    facts = JointFacts(tuple(values), (1, 2, 3, 4, 5), (7, 8, 9), (5,), (9,), frozenset((1,)), ("0",))
    schedule = make_schedule(facts, (1,))
    placed = place(facts, schedule, Clock(facts, schedule), [(1, Tier("host", 1.0, 1.0))], 0)
    assert placed.schedule.backward.loads and placed.schedule.backward.settled != schedule.backward.settled
    for found in (schedule, placed.schedule):
        assert found.settled() == ((3, 0),)
        assert {found.backward.values[slot] for slot in found.backward.settled} == {3}


nodes = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8)
rates = st.sampled_from((0.5, 1.0, 3.0, 100.0))


tiers = st.lists(st.sampled_from(("host", "nvme")), min_size=8, max_size=8)


def stalls(sizes, tiers, out: float, back: float, window: float) -> tuple[float, float]:
    """The stall as it is played, and as it is predicted."""
    facts = chain([((n,), size, float(seconds), True, "") for n, (size, seconds) in enumerate(sizes)])
    values = list(facts.values)
    for i, (_, seconds) in zip(facts.backward, sizes, strict=True):
        values[i] = dataclasses.replace(values[i], seconds=float(seconds))
    facts = dataclasses.replace(facts, values=tuple(values))
    schedule = make_schedule(facts, facts.forward)
    found = {"host": Tier("host", out, back), "nvme": Tier("nvme", out / 2, back / 3)}
    chosen = [(i, found[tiers[i % 8]]) for i in schedule.saved if i in facts.forward]
    placed = place(facts, schedule, Clock(facts, schedule), chosen, window)
    return played(facts, schedule, placed, found), placed.stall


@settings(SETTINGS, max_examples=200)
@given(nodes, tiers, rates, st.sampled_from((0.0, 1.0, 5.0, 12.0, math.inf)))
def test_the_forward_waits_no_longer_than_predicted(sizes, tiers, out, window):
    found, most = stalls(sizes, tiers, out, 1e12, window)
    assert found <= most + 1e-6


@settings(SETTINGS, max_examples=200)
@given(nodes, tiers, rates, rates, st.sampled_from((0.0, 1.0, 5.0, 12.0, math.inf)))
def test_the_step_waits_no_longer_than_predicted(sizes, tiers, out, back, window):
    """On each link copies back start in the order of their uses, whatever the window makes wait."""
    found, most = stalls(sizes, tiers, out, back, window)
    assert found <= most + 1e-6


def test_what_hides_costs_nothing_and_what_does_not_is_waited_for():
    facts = chain([((n,), 4, 2.0, True, "") for n in range(4)])
    schedule = make_schedule(facts, facts.forward)
    clock = Clock(facts, schedule)

    def stall(rate: float, value: int) -> float:
        return place(facts, schedule, clock, [(value, Tier("host", rate, 1e9))], math.inf).stall

    def drag(rate: float, value: int, share: float) -> float:
        return place(facts, schedule, clock, [(value, Tier("host", rate, rate, drag=share))], math.inf).drag

    assert drag(4.0, 1, 0.0) == 0.0
    assert drag(4.0, 1, 0.5) == pytest.approx(0.5)  # a second out, hidden, and one back, beside nothing
    assert drag(0.5, 4, 0.5) == pytest.approx(0.0, abs=1e-6)  # sixteen seconds beside nothing
    each = Tier("host", 0.5, 0.5, each=3.0)
    assert place(facts, schedule, clock, [(4, each)], math.inf).drag == pytest.approx(3.0)  # whoever waits
    assert stall(4.0, 1) == pytest.approx(0.0, abs=1e-6)  # a second of copying under three operators of two seconds
    assert stall(0.5, 1) == pytest.approx(2.0)  # eight seconds, of which six are hidden
    assert stall(0.5, 4) == pytest.approx(8.0)  # born last: nothing runs meanwhile
