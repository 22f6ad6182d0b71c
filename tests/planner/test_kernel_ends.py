"""Where kernels end: no function of C++ holds more than the bound, as far as an end can help."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.base.errors import PlanError
from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidates
from memgraph.planner.decisions import KernelEnd, Plan, Step
from memgraph.planner.kernel_ends import kernel_ends
from memgraph.planner.replay import replayed_ends
from tests.support.facts import SETTINGS, value


def attention() -> JointFacts:
    """y = (e / sum) @ v with e = exp(s) saved, and a backward of two products that reads it."""
    values = [
        value("x", "primal", at=0, size=8),
        value("s", "extern", 0, at=1, size=64, seconds=1.0),
        value("e", "pointwise", 1, at=2, size=64, seconds=0.1, heavy=True),
        value("sum", "reduction", 2, at=3, size=1, seconds=0.1),
        value("w", "pointwise", 2, 3, at=4, size=64, seconds=0.1),
        value("y", "extern", 4, at=5, size=8, seconds=1.0),
        value("dy", "tangent", at=6, size=8),
        value("dw", "extern", 6, at=7, size=64, seconds=1.0),
        value("ds", "pointwise", 2, 7, at=8, size=64, seconds=0.1),
        value("dx", "extern", 8, at=9, size=8, seconds=1.0),
    ]
    return JointFacts(tuple(values), (1, 2, 3, 4, 5), (7, 8, 9), (5,), (9,), frozenset((2,)), ("0",))


def test_the_scores_are_gone_before_the_weights_are_made():
    facts = attention()
    candidate = Candidates(facts).of(frozenset((2,)))
    assert candidate.peak < 150  # two squares, by the sweep
    assert kernel_ends(facts, candidate, 150) == (KernelEnd("forward", "w", ("e", "sum")),)
    assert kernel_ends(facts, candidate, 0) == kernel_ends(facts, candidate, candidate.peak)


def test_where_the_bound_has_room_nothing_ends():
    facts = attention()
    assert kernel_ends(facts, Candidates(facts).of(frozenset((2,))), 250) == ()


def test_a_plan_gives_its_ends_back_from_json_and_older_ones_have_none():
    plan = Plan(("x",), (), kernel_ends=(KernelEnd("forward", "w", ("e",)), KernelEnd("backward", "ds")))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.ends_in("forward") and not Plan(("x",), ()).ends_in("forward")
    older = plan.to_dict()
    del older["kernel_ends"]
    assert Plan.from_dict(older).kernel_ends == ()


@pytest.mark.parametrize(
    "end",
    [
        KernelEnd("forward", "gone", ("s",)),
        KernelEnd("forward", "w", ("gone",)),
        KernelEnd("forward", "e", ("w",)),
        KernelEnd("backward", "w"),
        KernelEnd("sideways", "w"),
    ],
)
def test_a_given_plan_ends_kernels_where_it_runs_what_it_names(end):
    steps = (Step("dw", 0, (0,)), Step("ds", 0, (0, 0)))
    plan = Plan(("e",), steps, forward=("s", "e", "w"), kernel_ends=(KernelEnd("backward", "ds", ("dw",)),))
    assert replayed_ends(plan) == plan.kernel_ends
    with pytest.raises(PlanError, match="kernels"):
        replayed_ends(dataclasses.replace(plan, kernel_ends=(end,)))


@st.composite
def mixed(draw) -> JointFacts:
    """A forward of products, sums and values entry by entry; the backward has a product for each that it reads."""
    values = [value("x", "primal", at=0, size=8)]
    count = draw(st.integers(4, 12))
    for n in range(1, count + 1):
        kind = draw(st.sampled_from(["extern", "pointwise", "reduction", "reduction", "reduction"]))
        inputs = tuple(sorted({n - 1, draw(st.integers(max(0, n - 2), n - 1))}))
        size = draw(st.integers(1, 20))
        values.append(value(f"f{n}", kind, *inputs, at=n, size=size, seconds=1.0, heavy=draw(st.booleans())))
    forward = tuple(range(1, count + 1))
    read = sorted(draw(st.sets(st.sampled_from(forward), min_size=1)) | {count})
    values.append(value("dy", "tangent", at=len(values), size=8))
    last, backward = len(values) - 1, []
    for n in reversed(read):
        kind = draw(st.sampled_from(["extern", "reduction", "reduction"]))
        values.append(value(f"b{n}", kind, n, last, at=len(values), size=draw(st.integers(1, 20))))
        last = len(values) - 1
        backward.append(last)
    return JointFacts(tuple(values), forward, tuple(backward), (count,), (last,), frozenset(read), ("0",))


def functions(facts: JointFacts, program, swept, level: int, ends: set[str]):
    """For each function: (bytes that it holds, bytes that stand, bytes that it writes next) at each of its writes."""
    runs = [[]]
    for slot in range(program.inputs, len(program.values)):
        made = facts.values[program.values[slot]]
        born = sum(size for storage, size in swept.bytes.items() if swept.births.get(storage) == slot)
        gone = sum(size for storage, size in swept.bytes.items() if swept.deaths.get(storage) == slot)
        if made.kind == "extern":
            runs.append([])
        elif born:
            if made.name in ends:
                runs.append([])
            runs[-1].append((level, born))
        level += born - gone
    for run in filter(None, runs):
        held = run[0][0]
        yield [(held + before, stands, born) for (stands, born), before in zip(run, sums(run), strict=True)]


def sums(run):
    return [0, *itertools.accumulate(born for _, born in run)][: len(run)]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@settings(SETTINGS, max_examples=150)
@given(mixed(), st.integers(0, 8))
def test_each_function_keeps_the_bound_where_an_end_can_help_and_each_end_helps(phase, facts, more):
    candidate = Candidates(facts).stock
    schedule, limit = candidate.schedule, candidate.peak + more
    ends = {end.before for end in kernel_ends(facts, candidate, limit) if end.phase == phase}
    if phase == "forward":
        sides = schedule.forward, candidate.forward, 0
    else:
        sides = schedule.backward, candidate.backward, candidate.carried
    for run in functions(facts, *sides, ends):
        for held, stands, born in run[1:]:
            assert held + born <= limit or held <= stands, "an end before this value would have helped"
    for one in ends:
        without = [run for run in functions(facts, *sides, ends - {one}) if run]
        assert any(held + born > limit and held > stands for run in without for held, stands, born in run)


@pytest.mark.parametrize("called", [False, True])
def test_an_operator_with_several_outputs_that_is_called_by_itself_ends_a_function(called):
    """A convolution's backward, whose gradients a reduction and a value entry by entry read: no end before these."""
    values = [
        value("x", "primal", at=0, size=8),
        value("y", "extern", 0, at=1, size=64, seconds=1.0),
        value("dy", "tangent", at=2, size=64),
        value("s", "reduction", 1, 2, at=3, size=60),
        value("both", "tuple", 3, at=4, size=0, called=called),
        value("dx", "getitem", 4, at=5, size=60),
        value("r", "reduction", 5, at=6, size=60),
        value("dw", "extern", 6, at=7, size=8),
    ]
    facts = JointFacts(tuple(values), (1,), (3, 4, 5, 6, 7), (1,), (7,), frozenset((1,)), ("0",))
    candidate = Candidates(facts).stock
    ends = kernel_ends(facts, candidate, candidate.peak)
    assert [end.before for end in ends if end.phase == "backward"] == ([] if called else ["r"])
