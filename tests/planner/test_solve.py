"""The minimum cut against every subset; schedules; the plan as JSON. Hand-made facts, no torch."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts, Value
from memgraph.planner.cut import SavedSetCut, Uncuttable
from memgraph.planner.decisions import Decision, Plan, Step
from memgraph.planner.schedule import Copies, Unschedulable, make_schedule
from memgraph.planner.segments import SegmentCosts
from memgraph.planner.solve import Planner

SETTINGS = settings(deadline=None, derandomize=True, database=None)


def value(name: str, kind: str, *inputs: int, at: int, size: int = 0, **rest) -> Value:
    base = {"seconds": 0.0, "region": 0, "savable": kind != "tangent"}
    return Value(name=name, kind=kind, inputs=inputs, storage=at, bytes=size, **(base | rest))


def chain(nodes, *, regions: int = 1, outputs=()) -> JointFacts:
    """One input x, forward values f0, f1, ..., and for each that is read by the backward one backward value.

    nodes: one a forward value: (inputs, bytes, seconds, read by the backward, fixed).
    """
    values = [value("x", "primal", at=0, size=8)]
    for n, (inputs, size, seconds, _, fixed) in enumerate(nodes):
        region = n * regions // len(nodes)
        values.append(
            value(f"f{n}", "extern", *inputs, at=n + 1, size=size, seconds=seconds, region=region, fixed=fixed)
        )
    forward = tuple(range(1, len(values)))
    values.append(value("dz", "tangent", at=len(values), size=8))
    last, backward = len(values) - 1, []
    for n in reversed(range(len(nodes))):
        if nodes[n][3]:
            backward.append(len(values))
            region = n * regions // len(nodes)
            values.append(value(f"b{n}", "extern", last, n + 1, at=len(values), size=8, region=region))
            last = len(values) - 1
    return JointFacts(
        values=tuple(values),
        forward=forward,
        backward=tuple(backward),
        forward_outputs=outputs,
        backward_outputs=(last,),
        stock_saved=frozenset(n + 1 for n, node in enumerate(nodes) if node[3]),
        region_names=tuple(f"layers.{n}" for n in range(regions)),
    )


@st.composite
def graphs(draw) -> JointFacts:
    nodes = []
    for n in range(draw(st.integers(1, 7))):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, n), min_size=1, max_size=2))))
        size, seconds = draw(st.integers(1, 20)), float(draw(st.integers(0, 20)))
        read = draw(st.booleans()) or n == 0
        nodes.append((inputs, size, seconds, read, "draws" if draw(st.integers(0, 7)) == 7 else ""))
    return chain(nodes, regions=draw(st.integers(1, 3)))


def again(facts: JointFacts, saved: frozenset[int]) -> float | None:
    """Seconds of computing again what the backward needs and was not saved; None where that is not legal."""
    pending = [i for b in facts.backward for i in facts.values[b].inputs]
    seen: set[int] = set()
    while pending:
        i = pending.pop()
        if i in seen or i in saved or i not in facts.forward:
            continue
        if facts.values[i].fixed:
            return None
        seen.add(i)
        pending += facts.values[i].inputs
    return sum(facts.values[i].seconds for i in seen)


def subsets(facts: JointFacts):
    for size in range(len(facts.forward) + 1):
        for saved in itertools.combinations(facts.forward, size):
            seconds = again(facts, frozenset(saved))
            if seconds is not None:
                yield frozenset(saved), sum(facts.values[i].bytes for i in saved), seconds


@settings(SETTINGS, max_examples=100)
@given(graphs(), st.sampled_from((0.01, 0.1, 0.5, 1.0, 3.0, 100.0)))
def test_the_cut_is_the_best_of_all_subsets(facts, price):
    cut = SavedSetCut(facts).at(price)
    best = min(seconds + price * size for _, size, seconds in subsets(facts))
    assert again(facts, cut.saved) == pytest.approx(cut.seconds)
    assert cut.bytes == sum(facts.values[i].bytes for i in cut.saved)
    assert cut.seconds + price * cut.bytes == pytest.approx(best, rel=1e-6)


@settings(SETTINGS, max_examples=60)
@given(graphs())
def test_a_dearer_byte_is_saved_less(facts):
    cut = SavedSetCut(facts)
    prices = cut.prices(1e-3, 1e3, 8)
    assert prices == sorted(prices) and 1 <= len(prices) <= 8
    cuts = [cut.at(price) for price in prices]
    for cheap, dear in itertools.pairwise(cuts):
        assert cheap.bytes >= dear.bytes and cheap.seconds <= dear.seconds + 1e-9


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


def test_what_can_be_neither_held_nor_computed_again():
    facts = chain([((0,), 8, 1.0, True, "draws")])
    values = list(facts.values)
    values[1] = dataclasses.replace(values[1], savable=False)
    with pytest.raises(Uncuttable):
        SavedSetCut(dataclasses.replace(facts, values=tuple(values))).at(1.0)


def test_a_forward_output_is_held_for_nothing():
    nodes = [((0,), 100, 1.0, True, ""), ((1,), 100, 1.0, True, "")]
    assert SavedSetCut(chain(nodes)).at(1.0).saved == frozenset()
    assert SavedSetCut(chain(nodes, outputs=(1,))).at(1.0).saved == {1}


def test_a_long_chain_is_cut_into_segments():
    """Saving nothing peaks as high as saving all: every value is computed before the first is read."""
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(16)], regions=16)
    planner = Planner(facts, fused=False)
    nothing = planner.evaluate(make_schedule(facts, ()))
    assert nothing.peak >= planner.stock.peak
    best = planner.best(planner.stock.peak * 6 // 10)
    assert best is not None and 0 < best.seconds <= 12e-6
    assert planner.smallest().peak <= planner.stock.peak // 2


def chain_of(length: int) -> JointFacts:
    return chain([((n,), 100, 1e-6, True, "") for n in range(length)], regions=length)


@pytest.mark.parametrize("length", (16, 36, 64, 144, 256))
def test_a_chain_reaches_the_optimum(length):
    """Of all choices of borders, each value computed again at most once: about sqrt(2 n) values of n."""
    planner = Planner(chain_of(length))
    smallest = planner.smallest()
    assert smallest.peak <= 100 * (fewest(length) + 1)
    assert smallest.seconds <= length * 1e-6


def fewest(length: int) -> int:
    """The least number of values of a chain that must be live at once, borders included, by any borders."""
    # least[rest][borders]: for the last `rest` values, behind that many borders. A segment has its values and borders.
    least = [[0] * (length + 2)]
    for rest in range(1, length + 1):
        row = [
            min(max(borders + segment, least[rest - segment][borders + 1]) for segment in range(1, rest + 1))
            for borders in range(length - rest + 1)
        ]
        least.append(row)
    return least[length][0]


@settings(SETTINGS, max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_borders_of_an_uneven_chain_against_every_saved_set(sizes):
    facts = chain([((n,), 100 * size, 1e-6, True, "") for n, size in enumerate(sizes)], regions=len(sizes))
    planner = Planner(facts)
    every = [planner.candidate(frozenset(saved)) for saved, _, _ in subsets(facts)]
    best = min(candidate.peak for candidate in every if candidate is not None)
    # The costs of segments take a segment's recomputation to begin before its last operator gives up its own value.
    assert best <= planner.smallest().peak <= best + 100 * max(sizes)


@settings(SETTINGS, max_examples=60)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.data())
def test_borders_against_every_choice_of_them(sizes, data):
    """The least limit that works, and the least held under a limit, among all sets of borders."""
    count = len(sizes)
    again = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    crossing, peak = np.zeros((count, count)), np.full((count, count), -np.inf)
    for first in range(count):
        for last in range(first, count):
            peak[first, last] = sum(sizes[first : last + 1]) + again[last]
            crossing[first, last] = 0 if first == last else sizes[last - 1]
    peak = np.maximum.accumulate(peak, axis=1)
    costs = SegmentCosts(crossing, peak)

    def level(borders: tuple[int, ...]) -> float:
        held, highest = 0.0, 0.0
        for first, after in itertools.pairwise((0, *borders, count)):
            highest = max(highest, held + peak[first, after - 1])
            held += crossing[first, after] if after < count else 0.0
        return highest

    choices = [b for size in range(count) for b in itertools.combinations(range(1, count), size)]
    best = min(map(level, choices))
    lowest = costs.lowest()
    assert best <= lowest <= best * (1 + 1e-6) + 1e-6
    assert level(costs.borders(lowest)) == pytest.approx(best)
    assert costs.borders(best * 0.99 - 1e-3) is None


def test_borders_where_a_saved_value_has_no_reader_in_the_forward():
    """A mask that must not be made twice, for the backward alone."""
    nodes = [((n,), 100, 1e-6, True, "") for n in range(9)] + [((4,), 100, 1e-6, True, "draws random numbers")]
    planner = Planner(chain(nodes, regions=10))
    assert planner.smallest().peak < planner.stock.peak // 2
    assert any(entry.borders for entry, _ in planner.uniform())


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


def test_a_plan_survives_json():
    decision = Decision("f0", 8, "recompute", "layers.0", "model.py:3", 0.5, "dropped for the budget")
    steps = (Step("f0", 0, (0,)), Step("b0", 0, (0, 1)))
    plan = Plan(("x", "f1"), steps, False, (decision,), 24, 0.5, settled=("add_3",))
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(plan) == hash(Plan.from_json(plan.to_json()))
