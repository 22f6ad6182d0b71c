"""Any legal plan means what the unplanned step means, and peaks where its timeline says."""

from __future__ import annotations

import itertools

import pytest
from graphs import Captured, capture, same_bits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from programs import OPS, Op, Program, programs

from memgraph.planner.candidate import Candidate
from memgraph.planner.cut import SavedSetCut
from memgraph.planner.schedule import Unschedulable, make_schedule
from memgraph.planner.solve import Planner
from memgraph.planning import timeline

# Found by measuring: a Python number becomes a 0-d tensor, a mean of everything divides in a buffer of its own, and
# attention works on tiles. These take a few bytes within one call, which no timeline shows.
SCRATCH = {"attention", "norm", "count", "slice", "layer_norm", "track"}
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
choices = st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=3)


def legal(facts, chosen: set[int], copies: bool) -> Candidate:
    """The schedule that saves the chosen of the values that the backward comes from, and what has to be saved."""
    needed = SavedSetCut(facts).needed
    savable = [i for i in needed if facts.values[i].savable]
    saved = {savable[n % len(savable)] for n in chosen} if savable else set()
    planner = Planner(facts, fused=False, copies=copies)
    try:
        return planner.evaluate(make_schedule(facts, saved, copies))
    except Unschedulable:
        fixed = {i for i in savable if facts.values[i].fixed}
        assert fixed - saved, "nothing that must not run twice is missing"
        return planner.evaluate(make_schedule(facts, saved | fixed, copies))


@settings(SETTINGS, max_examples=40)
@given(programs(), choices, st.booleans(), st.booleans())
def test_any_legal_plan_is_the_unplanned_step(program, plans, decompose, copies):
    captured = capture(program, decompose=decompose)
    unplanned = captured.run(captured.forward, captured.backward)
    stock = Planner(captured.facts, fused=False).stock
    for chosen in plans:
        candidate = legal(captured.facts, chosen, copies)
        graphs = captured.realise(candidate, stock)
        assert same_bits(unplanned, captured.run(*graphs))
        assert candidate.peak == captured.held(*graphs)
        assert candidate.peak == timeline(captured.facts, candidate).peak


@settings(SETTINGS, max_examples=15)
@given(programs(sorted(set(OPS) - SCRATCH)), st.sets(st.integers(0, 40)))
def test_the_predicted_peak_is_the_profilers(program, chosen):
    captured = capture(program, decompose=False)
    candidate = legal(captured.facts, chosen, True)
    graphs = captured.realise(candidate, Planner(captured.facts, fused=False).stock)
    assert candidate.peak == captured.peak(*graphs)


@settings(SETTINGS, max_examples=25)
@given(programs(most=14), st.booleans())
def test_any_bound(program, fused):
    planner = Planner(capture(program).facts, fused=fused)
    top, low = planner.stock.peak, planner.smallest().peak
    assert planner.best(top) is planner.stock and planner.best(None) is planner.stock
    assert low <= top
    assert planner.best(low) is not None
    before = planner.stock
    for bound in sorted({top - 1, *(low + (top - low) * n // 7 for n in range(7)), low - 1}, reverse=True):
        best = planner.best(bound)
        if best is None:
            assert bound < low
            break
        assert best.peak <= bound
        assert best.peak <= before.peak, "a lower bound, a higher peak"
        assert best.seconds >= before.seconds - 1e-12, "a lower bound, a faster plan"
        before = best


@settings(SETTINGS, max_examples=15)
@given(programs(most=12), st.sets(st.integers(0, 40), max_size=3), st.sets(st.integers(0, 40), max_size=3))
def test_pins(program, kept, dropped):
    facts = capture(program).facts
    needed = [i for i in SavedSetCut(facts).needed if facts.values[i].savable and not facts.values[i].fixed]
    assume(needed)
    save = {needed[n % len(needed)] for n in kept}
    again = {needed[n % len(needed)] for n in dropped} - save
    assert save or again or True
    import dataclasses

    pin = {**dict.fromkeys(save, ("save", "test")), **dict.fromkeys(again, ("recompute", "test"))}
    values = tuple(dataclasses.replace(v, pin=pin.get(i, v.pin)) for i, v in enumerate(facts.values))
    pinned = Planner(dataclasses.replace(facts, values=values), fused=False)
    for best in (pinned.smallest(), pinned.best(pinned.stock.peak - 1)):
        if best is not None and not best.stock:
            assert not save & best.schedule.recomputed
            assert not again & set(best.schedule.saved)
