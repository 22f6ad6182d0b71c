"""A plan that was kept is the plan that was made; on another graph it is refused, and the difference is named."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from memgraph.base.errors import PlanError
from memgraph.facts.identity import Identity, Line, read_identity
from memgraph.planner.candidates import Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.decisions import Plan, Step, node_name
from memgraph.planner.explain import make_plan
from memgraph.planner.leaving import Tiers
from memgraph.planner.replay import replayed
from memgraph.planner.solve import Planner
from memgraph.planner.step_plan import GraphPlan, StepPlan
from tests.properties.test_plans import HOST, choices, legal, moved, moves
from tests.support.graphs import Captured, capture, same_bits
from tests.support.lanes import examples
from tests.support.programs import Op, Program, programs

SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def kept(captured: Captured, plan: Plan, path) -> StepPlan:
    """The plan of a captured graph, saved and loaded."""
    identity = read_identity(captured.before)
    graph = GraphPlan(graph="loss_fn [0]", identity=identity, plan=plan.without_sources(), peak=plan.peak, seconds=0.5)
    made = StepPlan(graphs=(graph,), requested="0.4", budget=7, device="cpu", versions=(("torch", "2"),))
    made.save(path)
    found = StepPlan.load(path)
    assert found == made and hash(found) == hash(made) and found.digest == made.digest
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("plans") / "plan.json"


def chosen_candidates(captured: Captured, plans, drawn, copies):
    yield moved(captured.facts, Planner(captured.facts, fused=False).stock, drawn)  # it settles nothing
    for chosen in plans:
        base = legal(captured.facts, chosen, copies)
        yield base
        yield moved(captured.facts, base, drawn)


@settings(SETTINGS, max_examples=examples(12))
@given(programs(), choices, moves, st.sampled_from(Copies))
def test_a_kept_plan_is_the_plan_that_was_made(file, program, plans, drawn, copies):
    captured, again = capture(program), capture(program)
    unplanned = captured.run(captured.forward, captured.backward)
    stock = Planner(captured.facts, fused=False).stock
    for candidate in chosen_candidates(captured, plans, drawn, copies):
        plan = dataclasses.replace(make_plan(captured.facts, candidate, stock), stock=False)
        found = kept(captured, plan, file).of(read_identity(again.before)).plan
        candidates = Candidates(again.facts, fused=False)
        applied = replayed(found, candidates, HOST)
        remade = dataclasses.replace(make_plan(again.facts, applied, candidates.stock), stock=False)
        ignored = {"decisions": (), "seconds": 0.0}
        assert dataclasses.replace(remade, **ignored) == dataclasses.replace(plan, **ignored)
        assert [(d.name, d.action, d.bytes) for d in remade.decisions] == [
            (d.name, d.action, d.bytes) for d in plan.decisions
        ]
        assert applied.peak == candidate.peak
        graphs, same = captured.realise(candidate, stock), again.realise(applied, candidates.stock)
        assert [graph.code for graph in graphs] == [graph.code for graph in same]
        assert same_bits(unplanned, again.run(*same))


CHANGES = {
    "operator": lambda line: dataclasses.replace(line, operator="aten.other.default"),
    "value": lambda line: dataclasses.replace(line, value="[3, 3] float64"),
    "strides": lambda line: dataclasses.replace(line, strides="[1, 99]"),
    "arguments": lambda line: dataclasses.replace(line, arguments="(%0, %0, %0)"),
    "name": lambda line: dataclasses.replace(line, name="another"),
}


@settings(SETTINGS, max_examples=examples(12))
@given(programs(), st.integers(0, 10_000))
def test_a_graph_that_differs_in_one_line_is_refused_with_it(program, drawn):
    identity = read_identity(capture(program).before)
    place = drawn % len(identity.lines)
    mine = identity.lines[place]
    kind, alike = kind_of(mine), [line for line in identity.lines[: place + 1] if kind_of(line) == kind_of(mine)]
    for change in CHANGES.values():
        lines = list(identity.lines)
        lines[place] = change(mine)
        other = Identity(tuple(lines))
        assert not identity.same(other) and identity.equal_lines(other) == place
        with pytest.raises(PlanError) as refusal:
            plan_of(identity).of(other)
        told = re.search(r"the plan's (\d+)\w\w (\w+) is (.*); this graph's is (.*)", str(refusal.value))
        assert told is not None and told.group(3) != told.group(4)
        assert (int(told.group(1)), told.group(2)) == (len(alike), kind)


def kind_of(line: Line) -> str:
    return line.operator if line.operator in ("input", "output") else "operator"


def plan_of(identity: Identity, plan: Plan | None = None) -> StepPlan:
    given = plan or Plan((), ())
    return StepPlan(graphs=(GraphPlan(graph="f [0]", identity=identity, plan=given, peak=1, seconds=0.0),))


@settings(SETTINGS, max_examples=examples(12))
@given(programs(most=10), choices, st.data())
def test_what_a_plan_settles_is_its_own(program, plans, data):
    captured = capture(program)
    candidates = Candidates(captured.facts, fused=False)
    candidate = legal(captured.facts, plans[0], Copies.OF_HELD)
    plan = dataclasses.replace(make_plan(captured.facts, candidate, candidates.stock), stock=False)
    assume(plan.backward)
    settled = tuple(node_name(s.name, s.copy) for s in plan.backward if data.draw(st.booleans()))
    found = replayed(dataclasses.replace(plan, settled=settled), candidates, Tiers())
    remade = make_plan(captured.facts, found, candidates.stock)
    assert remade.settled == settled and (remade.saved, remade.backward) == (plan.saved, plan.backward)


@settings(SETTINGS, max_examples=examples(12))
@given(programs(most=10), st.data())
def test_a_plan_with_a_step_out_of_its_place_is_refused(program, data):
    captured = capture(program)
    candidates = Candidates(captured.facts, fused=False)
    plan = dataclasses.replace(make_plan(captured.facts, candidates.stock, candidates.stock), stock=False)
    assume(len(plan.backward) > 1)
    n = data.draw(st.integers(0, len(plan.backward) - 2))
    steps = list(plan.backward)
    broken = {
        "unknown": [*steps[:n], Step("nothing", 0, ()), *steps[n:]],
        "lost": steps[:n] + steps[n + 1 :],
        "reads": [*steps[:n], dataclasses.replace(steps[n], reads=(*steps[n].reads, 0)), *steps[n + 1 :]],
    }[data.draw(st.sampled_from(["unknown", "lost", "reads"]))]
    with pytest.raises(PlanError, match="the plan"):
        replayed(dataclasses.replace(plan, backward=tuple(broken)), candidates, Tiers())


@settings(SETTINGS, max_examples=examples(12))
@given(programs(most=10), st.data())
def test_the_order_of_a_plans_forward_is_its_own(program, data):
    captured = capture(program)
    facts, candidates = captured.facts, Candidates(captured.facts, fused=False)
    plan = dataclasses.replace(make_plan(facts, candidates.stock, candidates.stock), stock=False)
    assume(plan.forward and all(facts.values[i].fixed is None for i in facts.forward))
    value = {v.name: v for v in facts.values}
    reads = {name: {facts.values[i].name for i in value[name].inputs} for name in plan.forward}
    order, left = [], list(plan.forward)
    while left:
        order.append(data.draw(st.sampled_from([name for name in left if reads[name].isdisjoint(left)])))
        left.remove(order[-1])
    found = replayed(dataclasses.replace(plan, forward=tuple(order)), candidates, Tiers())
    assert make_plan(facts, found, candidates.stock).forward == tuple(order)
    assert same_bits(
        captured.run(captured.forward, captured.backward), captured.run(*captured.realise(found, candidates.stock))
    )
    older = replayed(dataclasses.replace(plan, forward=()), candidates, Tiers())
    ran = set(plan.forward)
    joint = [facts.values[i].name for i in facts.stock_forward or facts.forward]
    assert make_plan(facts, older, candidates.stock).forward == tuple(name for name in joint if name in ran)
    n = data.draw(st.integers(0, len(order) - 1))
    lost = [name for name in order if name != order[n]]
    for broken, told in (
        (lost, f"before '{order[n]}', which it reads|never computes '{order[n]}'"),
        ([*order, order[n]], "in the forward twice"),
        ([*order, "nothing"], "no such value"),
    ):
        with pytest.raises(PlanError, match=told):
            replayed(dataclasses.replace(plan, forward=tuple(broken)), candidates, Tiers())


PROGRAM = Program((Op("mul", 0, 1), Op("exp"), Op("tanh"), Op("mul", 0, 2)))
OTHERS = {
    "another operator": (Program((Op("mul", 0, 1), Op("exp"), Op("sigmoid"), Op("mul", 0, 2))), "operator", "tanh"),
    "another shape": (dataclasses.replace(PROGRAM, size=6), "input", "[2, 4, 4] float32"),
    "another order": (Program((Op("mul", 0, 1), Op("tanh"), Op("exp"), Op("mul", 0, 2))), "operator", "mul"),
    "another dtype": (Program((Op("mul", 0, 1), Op("exp"), Op("bfloat16"), Op("mul", 0, 2))), "operator", "tanh"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_graph_is_refused_by_name(what):
    program, kind, mine = OTHERS[what]
    plan, here = plan_of(read_identity(capture(PROGRAM).before)), read_identity(capture(program).before)
    with pytest.raises(PlanError, match="the plan is that of another graph") as refusal:
        plan.of(here)
    told = str(refusal.value)
    first, _, second = told.partition("; this graph's is ")
    assert f" {kind} is " in first and mine in first and second and second not in first
    assert plan.of(read_identity(capture(PROGRAM).before)) is plan.graphs[0]


def test_the_nearest_of_several_graphs_is_named():
    one, other = (read_identity(capture(p).before) for p in (PROGRAM, OTHERS["another shape"][0]))
    graphs = [dataclasses.replace(plan_of(i).graphs[0], graph=name) for i, name in ((one, "f [0]"), (other, "f [1]"))]
    plan = StepPlan.joined([StepPlan(graphs=(graph,)) for graph in graphs])
    assert plan.of(one) is graphs[0] and plan.of(other) is graphs[1]
    with pytest.raises(PlanError, match=r"none of the 2 graphs of the plan is g; the nearest is f \[0\]"):
        plan.of(read_identity(capture(OTHERS["another operator"][0]).before), "g")


def test_of_two_plans_of_one_graph_the_one_with_the_lower_peak_is_kept():
    graph = plan_of(read_identity(capture(PROGRAM).before)).graphs[0]
    low = dataclasses.replace(graph, peak=graph.peak - 1)
    for order in ([graph, low], [low, graph]):
        assert StepPlan.joined([StepPlan(graphs=(each,)) for each in order]).graphs == (low,)
    with pytest.raises(PlanError, match="other options"):
        StepPlan.joined([StepPlan(graphs=(graph,)), StepPlan(graphs=(graph,), options='{"tile": true}')])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is no JSON"),
        ("[]", "it is no plan of memgraph's"),
        ('{"kind": "memgraph plan", "format": 99}', "its format is 99, and this version of memgraph reads 1"),
        ('{"kind": "memgraph plan", "format": 1}', "it is damaged"),
        ('{"kind": "memgraph plan", "format": 1, "graphs": [], "options": {}, "versions": []}', "the plan of no graph"),
    ],
)
def test_a_file_that_holds_no_plan_is_refused_with_its_name(tmp_path, text, told):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=re.escape(f"{path}: ") + f".*{told}"):
        StepPlan.load(path)
    with pytest.raises(PlanError, match="there is no such file"):
        StepPlan.load(tmp_path / "nothing.json")
