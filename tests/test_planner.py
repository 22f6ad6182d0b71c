"""The minimum cut against every subset; schedules; the plan as JSON. Hand-made facts, no torch."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.facts.joint import JointFacts, Value
from memgraph.planner.cut import SavedSetCut, Uncuttable
from memgraph.planner.plan import Decision, Plan, Step
from memgraph.planner.schedule import Unschedulable, make_schedule
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


def test_a_plan_survives_json():
    decision = Decision("f0", 8, "recompute", "layers.0", "model.py:3", 0.5, "dropped for the budget")
    plan = Plan(("x", "f1"), (Step("f0", 0, (0,)), Step("b0", 0, (0, 1))), False, (decision,), 24, 0.5)
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(plan) == hash(Plan.from_json(plan.to_json()))
