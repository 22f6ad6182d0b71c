"""When things happen in a planned step: held against the times that the planner itself has predicted."""

import dataclasses
import itertools

import pytest
from hypothesis import given

from memgraph.facts.actions import Offload, Recompute
from memgraph.planner.course import Course, described, held, named, timed, timeline
from memgraph.planner.decisions import Doing, Event, Reuse, Timeline, Where
from memgraph.planner.explain import make_plan
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from tests.support.facts import SETTINGS, chain, graphs

HOST = Tier("host", out=2.0, back=4.0)


def steps(facts, candidate):
    """Seconds of all operators of a step, recomputation included, without waiting."""
    forward = candidate.schedule.forward
    ran = forward.values[forward.inputs :]  # not what only the backward would have read
    return sum(facts.values[i].seconds for i in (*ran, *facts.backward)) + sum(candidate.schedule.seconds)


@SETTINGS
@given(graphs())
def test_a_step_takes_as_long_as_was_predicted(facts):
    planner = Planner(facts, fused=False)
    for candidate in (planner.stock, planner.smallest()):
        course = Course(facts, candidate)
        assert course.backward[-1][1] == pytest.approx(steps(facts, candidate))
        found = timeline(facts, candidate, course)
        times = [event.at for event in found.events]
        assert times == sorted(times) and found.peak == candidate.peak
        assert [dataclasses.replace(e, at=0.0) for e in found.events] == list(timeline(facts, candidate).events)


@SETTINGS
@given(graphs())
def test_copies_go_one_after_another_and_are_waited_for(facts):
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    candidate = Planner(facts, fused=False, offload=Tiers((HOST,))).smallest()
    course = Course(facts, candidate, (HOST,))
    works = course.rounded()
    for lane in ("host out", "host back"):
        copies = [work for work in works if work.lane == lane]
        assert len(copies) == len(candidate.moves)
        assert all(one.end <= next_one.start + 1e-6 for one, next_one in itertools.pairwise(copies))
        rate = HOST.out if lane.endswith("out") else HOST.back
        sizes = {value.name: value.bytes for value in facts.values}
        assert all(work.end - work.start == pytest.approx(sizes[work.name] / rate) for work in copies)
    waited = sum(work.end - work.start for work in works if work.doing is Doing.WAIT)
    assert waited <= candidate.stall + 1e-6  # the planner counts a wait for every copy where its window is narrow
    assert course.backward[-1][1] == pytest.approx(steps(facts, candidate) + waited, abs=1e-6)


def example():
    nodes = [((0,), 6, 2.0, True, ""), ((1,), 10, 3.0, True, ""), ((2,), 4, 1.0, True, "draws")]
    return chain(nodes, regions=2)


def test_reads_and_regions_of_a_step():
    facts = example()
    stock = Planner(facts, fused=False).stock
    course = Course(facts, stock)
    found = {item.name: item for item in described(course, facts, ("f0", "f1", "dz", "nobody"))}
    assert set(found) == {"f0", "f1", "dz"}
    assert found["f1"].reads == (5.0, 6.0)  # f2 begins at 2 + 3, and the backward after f2
    assert [(work.doing, work.name, work.start, work.end) for work in course.rounded()] == [
        (Doing.FORWARD, "layers.0", 0.0, 5.0),
        (Doing.FORWARD, "layers.1", 5.0, 6.0),
    ]


def test_alternatives_are_what_could_have_been_done():
    facts = example()
    movable = tuple(dataclasses.replace(value, movable=value.name == "f1") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)
    planner = Planner(facts, fused=False)
    plan = make_plan(facts, planner.stock, planner.stock, tiers=(HOST,))
    found = {decision.name: decision.alternatives for decision in plan.decisions}
    assert found["f0"] == ((str(Recompute()), 2.0),)
    assert found["f1"] == ((str(Recompute()), 3.0), (str(Offload("host")), 10 / 2 + 10 / 4))
    assert found["f2"] == ()  # it draws


def test_generated_code_gets_the_times_of_its_values():
    facts = example()
    course = Course(facts, Planner(facts, fused=False).stock)
    names = named({"forward.buf0": ("f0",), "forward.buf1": ("new", "f1_copy3"), "forward.buf2": ("x9",)}, {"f0", "f1"})
    assert names == {"forward.buf0": "f0", "forward.buf1": "f1"}
    early = (Event("forward", "forward.buf1", 10), Event("forward", "forward.buf0", 6))
    read = Timeline((*early, Event("backward", "forward.buf0", -6)))
    times = [event.at for event in timed(read, course, names).events]
    assert times == [1.0, 1.0, 6.0]  # f1 begins at 2, f0 at 0; the backward at 6
    unknown = Timeline((Event("forward", "a", 1), Event("forward", "b", 1), Event("forward", "forward.buf0", 6)))
    assert timed(unknown, course, names) == unknown


def test_reuses_are_those_after_which_another_value_is_held():
    names = {"forward.buf0": "f0", "forward.buf1": "f1", "forward.buf2": "f1"}
    told = (
        Reuse(1, "forward.buf0", "forward.buf9"),  # of which nothing is known
        Reuse(2, "forward.buf0", "forward.buf1"),
        Reuse(3, "forward.buf0", "forward.buf2"),  # another name of the same value
        Reuse(4, "forward.buf0", "backward.f2"),  # what the backward calls it
        Reuse(4, "forward.buf5", "backward.f0"),
        Reuse(5, "forward.buf5", "backward.buf3"),
    )
    found, known = held(Timeline((), told), names | {"backward.buf3": "b0"}, {"f0", "f1", "f2", "b0"})
    assert found.reuses == (Reuse(2, "forward.buf0", "f2"), Reuse(5, "forward.buf5", "b0"))
    assert known["forward.buf5"] == "f0" and known["forward.buf0"] == "f0"


def test_copies_of_a_value_that_stand_at_the_peak_are_two():
    first, second = Event("backward", "x", 30, Where.BACKWARD), Event("backward", "x", 50, Where.BACKWARD)
    gone = dataclasses.replace(first, bytes=-30)
    assert Timeline((first, second)).live_at_peak() == (second, first)
    assert Timeline((first, second, gone, first)).live_at_peak() == (second, first)
    more = Event("backward", "y", 100)
    assert Timeline((first, second, gone, more)).live_at_peak() == (more, second)
