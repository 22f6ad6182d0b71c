"""No plan is faster or smaller than the lower bounds say."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts
from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.cut import SavedSetCut
from memgraph.planner.leaving import Tiers
from memgraph.planner.offload import Offloader
from memgraph.planner.queues import Tier
from memgraph.planner.schedule import Unschedulable, make_schedule
from memgraph.planner.solve import Planner
from tests.properties.test_plans import POINTWISE, SETTINGS, holds
from tests.support.graphs import capture
from tests.support.lanes import examples
from tests.support.programs import programs

# Saved sets of one program that are tried, at most.
MOST_SETS = 128


def plans(facts: JointFacts, candidates: Candidates) -> list[Candidate]:
    """Inductor's own choice and every saved set, with each kind of copies."""
    needed = [i for i in SavedSetCut(facts).needed if holds(facts.values[i])]
    free = [i for i in needed if not facts.values[i].fixed][:7]
    fixed = frozenset(i for i in needed if facts.values[i].fixed)
    found = [candidates.stock]
    for kept in itertools.product((False, True), repeat=len(free)):
        saved = fixed.union(i for i, keep in zip(free, kept, strict=True) if keep)
        for copies in Copies:
            with contextlib.suppress(Unschedulable):
                found.append(candidates.evaluate(make_schedule(facts, saved, copies)))
    return found


def all_held(planner: Planner) -> None:
    bounds = LowerBounds(planner.candidates)
    everything = plans(planner.facts, planner.candidates)
    assert bounds.smallest() <= min(candidate.peak for candidate in everything)
    for candidate in everything:
        held(bounds, candidate)


def held(bounds: LowerBounds, candidate: Candidate) -> None:
    least = bounds.under(candidate.peak)
    assert least is not None, "a plan has a peak that no plan is said to have"
    slack = 1e-9 + 1e-5 * abs(bounds.stock_time)
    assert least.seconds <= candidate.seconds + slack


@settings(SETTINGS, max_examples=examples(16))
@given(programs(most=12), st.booleans())
def test_no_plan_beats_its_bound(program, fused):
    all_held(Planner(capture(program).facts, fused=fused))


@settings(SETTINGS, max_examples=examples(16))
@given(programs(POINTWISE.split(), most=10), st.booleans(), st.data())
def test_no_plan_with_masks_beats_its_bound(program, fused, data):
    """Masks cost where they are written for several readers, and random numbers stand where masks are made of them."""
    facts = capture(program).facts
    values = list(facts.values)
    for i in facts.forward:
        if values[i].kind == "pointwise" and len(values[i].inputs) == 1 and data.draw(st.booleans()):
            hold, seconds = data.draw(st.sampled_from([0.0, 1e-6, 1e-3])), data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
            marks = {"masks": True, "expanded": data.draw(st.booleans())}
            values[i] = dataclasses.replace(values[i], **marks, hold=hold, seconds=seconds)
    all_held(Planner(dataclasses.replace(facts, values=tuple(values)), fused=fused))


@settings(SETTINGS, max_examples=examples(10))
@given(
    programs(POINTWISE.split(), most=10),
    st.floats(1e5, 1e12),
    st.floats(1e5, 1e12),
    st.sampled_from([0.0, 1000.0, math.inf]),
    st.one_of(st.none(), st.integers(100, 4000)),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([0.0, 1e-9, 1e-6]),
)
def test_no_plan_with_copies_beats_its_bound(program, out, back, window, capacity, drag, each):
    facts = capture(program).facts
    tier = Tier("host", out, back, capacity=capacity, drag=drag, each=each)
    planner = Planner(facts, offload=Tiers((tier,)))
    bounds = LowerBounds(planner.candidates, Tiers((tier,)))
    offloader = planner.offloader
    assert isinstance(offloader, Offloader)
    lowest = bounds.smallest()
    for base in plans(facts, planner.candidates)[::3]:
        base = offloader.plain if base.stock else base  # Inductor's own split has no copies
        movable = offloader.leaving.movable(base)
        for count in {len(movable), len(movable) // 2}:
            chosen = offloader.leaving.assign(base, movable[:count])
            candidate = offloader._with(base, chosen, window)
            assert lowest <= candidate.peak
            held(bounds, candidate)
