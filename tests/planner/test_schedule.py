"""Schedules: what is read was computed before, and what is computed more than once."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import sweep
from memgraph.planner.candidates import Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.schedule import Unschedulable, make_schedule
from tests.support.facts import SETTINGS, again, graphs, value


@settings(SETTINGS, max_examples=60)
@given(graphs(), st.sets(st.integers(0, 9)))
def test_a_schedule_computes_what_it_reads(facts, chosen):
    saved = {i for i in facts.forward if i in chosen}
    try:
        schedule = make_schedule(facts, saved)
    except Unschedulable:
        assert again(facts, frozenset(saved)) is None
        return
    assert again(facts, frozenset(saved)) is not None
    assert set(schedule.saved) <= saved | {0}
    at_hand = {(i, 0) for i in schedule.saved} | {(i, 0) for i, v in enumerate(facts.values) if v.kind == "tangent"}
    for step, reads in zip(schedule.backward_steps, schedule.backward_reads, strict=True):
        assert tuple(i for i, _ in reads) == facts.values[step[0]].inputs
        assert at_hand.issuperset(reads)
        at_hand.add(step)
    assert [i for i, _ in schedule.backward_steps if i in facts.backward] == list(facts.backward)


def test_a_copy_is_made_of_what_is_there_anyway():
    """z = gelu(y) is read before y by the backward: made of y again, so that it is not kept from its first use on."""
    values = [
        value("x", "primal", at=0, size=8),
        value("y0", "extern", 0, at=1, size=8, seconds=1.0),
        value("z0", "pointwise", 1, at=2, size=8, seconds=0.1),
        value("y1", "extern", 2, at=3, size=8, seconds=1.0, region=1),
        value("z1", "pointwise", 3, at=4, size=8, seconds=0.1, region=1),
        value("dz", "tangent", at=5, size=8),
        value("b1", "extern", 4, 5, at=6, size=8, region=1),  # reads z1
        value("c1", "extern", 3, 6, at=7, size=8, region=1),  # reads y1
        value("b0", "extern", 2, 7, at=8, size=8),  # reads z0
        value("c0", "extern", 1, 8, at=9, size=8),  # reads y0
    ]
    facts = JointFacts(tuple(values), (1, 2, 3, 4), (6, 7, 8, 9), (), (9,), frozenset((1, 2, 3, 4)), ("0", "1"))
    once = make_schedule(facts, (), Copies.OF_HELD)
    twice = make_schedule(facts, (), Copies.OF_LIVE)
    assert [step for step in once.backward_steps if step[0] == 2] == [(2, 0)]
    assert [step for step in twice.backward_steps if step[0] == 2] == [(2, 0), (2, 1)]
    assert [step for step in twice.backward_steps if step[0] == 1] == [(1, 0)]


def test_no_copy_for_the_sake_of_which_its_source_would_stay():
    """t = tanh(y): the backward reads t alone. To keep y for it saves nothing."""
    values = [
        value("x", "primal", at=0, size=8),
        value("y", "extern", 0, at=1, size=8, seconds=1.0),
        value("t", "pointwise", 1, at=2, size=8, seconds=0.1),
        value("u", "extern", 2, at=3, size=8, seconds=1.0, region=1),
        value("slope", "pointwise", 2, at=4, size=8, seconds=0.1),
        value("dz", "tangent", at=5, size=8),
        value("b1", "extern", 3, 5, at=6, size=8, region=1),
        value("b0", "extern", 2, 6, at=7, size=8),
        value("c0", "pointwise", 4, 7, at=8, size=8),
    ]
    facts = JointFacts(tuple(values), (1, 2, 3, 4), (6, 7, 8), (), (8,), frozenset((2, 3)), ("0", "1"))
    schedule = make_schedule(facts, (), Copies.OF_LIVE)
    assert [step for step in schedule.backward_steps if step[0] == 2] == [(2, 0)]


def test_what_a_mask_has_made_for_several_is_written_where_the_mask_is_computed_again():
    """As a softmax's backward reads the masked gradient: in a sum, and beside it. Each would draw the numbers again."""
    values = [
        value("x", "primal", at=0, size=8),
        value("r", "pointwise", at=1, size=8, seconds=0.1),
        dataclasses.replace(value("m", "pointwise", 1, at=2, size=2, seconds=0.1), masks=True),
        value("y", "extern", 0, 2, at=3, size=8, seconds=1.0),
        value("dy", "tangent", at=4, size=8),
        value("b", "extern", 4, at=5, size=8),
        value("scaled", "pointwise", 2, at=6, size=8),
        value("masked", "pointwise", 5, 6, at=7, size=8),
        value("total", "reduction", 7, at=8, size=1),
        value("dx", "pointwise", 7, 8, at=9, size=8),
    ]
    facts = JointFacts(tuple(values), (1, 2, 3), (5, 6, 7, 8, 9), (3,), (9,), frozenset((2,)), ("0",))
    again = make_schedule(facts, ())
    assert [again.backward.values[slot] for slot in again.backward.settled] == [7]
    assert not make_schedule(facts, (2,)).backward.settled and not make_schedule(facts, (1,)).backward.settled
    alone = dataclasses.replace(facts, values=(*values[:9], value("dx", "pointwise", 8, at=9, size=8)))
    assert not make_schedule(alone, ()).backward.settled  # the sum alone reads it


def test_a_mask_that_several_read_is_written_where_it_is_computed_again():
    """Else Inductor writes the random numbers, of four times the bytes, which both readers would compare again."""
    values = [
        value("x", "primal", at=0, size=8),
        value("r", "pointwise", at=1, size=8, seconds=0.1),
        dataclasses.replace(value("m", "pointwise", 1, at=2, size=2, seconds=0.1), masks=True),
        value("kept", "pointwise", 0, 2, at=3, size=8, seconds=0.1),
        value("y", "extern", 3, at=4, size=8, seconds=1.0),
        value("dy", "tangent", at=5, size=8),
        value("b", "extern", 3, 5, at=6, size=8),
        value("dx", "pointwise", 2, 6, at=7, size=8),
    ]
    facts = JointFacts(tuple(values), (1, 2, 3, 4), (6, 7), (4,), (7,), frozenset((2, 3)), ("0",))
    again, saved = make_schedule(facts, ()), make_schedule(facts, (2,))
    assert [again.backward.values[slot] for slot in again.backward.settled] == [2]
    assert not saved.backward.settled  # the mask is not computed again
    assert not make_schedule(facts, (3,)).backward.settled  # one reader: it is inlined
    assert not make_schedule(facts, (1,)).backward.settled  # the numbers are saved: both readers compare them
    assert not make_schedule(facts, (), settle=False).backward.settled
    named = dict(zip(again.backward.values, sweep(values, again.backward, fused=True).usage, strict=True))
    unsettled = make_schedule(facts, (), settle=False).backward
    written = dataclasses.replace(values[2], hold=0.5)
    priced = dataclasses.replace(facts, values=(*values[:2], written, *values[3:]))
    assert Candidates(priced).of(frozenset()).seconds == pytest.approx(Candidates(facts).of(frozenset()).seconds)
    assert Candidates(priced).of(frozenset((1,))).seconds < Candidates(facts).of(frozenset((1,))).seconds
    assert named[6] == dict(zip(unsettled.values, sweep(values, unsettled, fused=True).usage, strict=True))[6] + 2
