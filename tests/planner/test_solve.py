"""The planner on chains; the plan as JSON."""

from __future__ import annotations

from memgraph.facts.actions import Recompute
from memgraph.planner.decisions import Decision, Plan, Step
from memgraph.planner.schedule import make_schedule
from memgraph.planner.solve import Planner
from tests.support.facts import chain


def test_a_long_chain_is_cut_into_segments():
    """Saving nothing peaks as high as saving all: every value is computed before the first is read."""
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(16)], regions=16)
    planner = Planner(facts, fused=False)
    nothing = planner.candidates.evaluate(make_schedule(facts, ()))
    assert nothing.peak >= planner.stock.peak
    best = planner.best(planner.stock.peak * 6 // 10)
    assert best is not None and 0 < best.seconds <= 12e-6
    assert planner.smallest().peak <= planner.stock.peak // 2


def test_borders_where_a_saved_value_has_no_reader_in_the_forward():
    """A mask that must not be made twice, for the backward alone."""
    nodes = [((n,), 100, 1e-6, True, "") for n in range(9)] + [((4,), 100, 1e-6, True, "draws random numbers")]
    planner = Planner(chain(nodes, regions=10))
    assert planner.smallest().peak < planner.stock.peak // 2
    assert any(choice.borders for choice, _ in planner.uniform.found)


def test_a_plan_survives_json():
    decision = Decision("f0", 8, Recompute(), "layers.0", "model.py:3", 0.5, "dropped for the budget")
    steps = (Step("f0", 0, (0,)), Step("b0", 0, (0, 1)))
    plan = Plan(("x", "f1"), steps, False, (decision,), 24, 0.5, settled=("add_3",))
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(plan) == hash(Plan.from_json(plan.to_json()))


def test_the_lightest_keeps_the_bound_with_what_is_sure_to_come():
    """Sixteen values of 100 bytes: what is not carried to the backward is made again there, all at once."""
    planner = Planner(chain([((n,), 100, 1e-6, True, "") for n in range(16)], regions=16), fused=False)
    offered = {(c.peak, c.carried) for c in planner.offered()}
    assert {(1608, 0), (1008, 100), (708, 200), (608, 400), (516, 500)} <= offered

    def lightest(bound, again=0, gradients=0):
        found = planner.lightest(7, lambda peak, held: max(0, again * held - gradients), bound)
        return found.peak, found.carried

    assert lightest(None) == (1608, 0) and lightest(1600) == (1008, 100)
    assert lightest(700) == (608, 400) and lightest(700, again=1) == lightest(900, again=1) == (708, 200)
    assert lightest(1108, again=1) == (1008, 100)  # with the other's values just within the bound
    # Where none keeps the bound: what the others leave decides, and of equal ones which is lighter.
    assert lightest(500) == (516, 500) and lightest(500, again=1) == (708, 200)
    assert lightest(500, again=1, gradients=300) == (708, 200) and lightest(500, again=20) == (1608, 0)
