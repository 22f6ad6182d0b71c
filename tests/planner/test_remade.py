"""What it costs that fused operators compute values again: in the linear program, against what a sweep counts."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.facts.joint import JointFacts
from memgraph.planner.bound import LowerBounds
from memgraph.planner.candidates import Candidates
from memgraph.planner.solve import Planner
from tests.support.facts import value

SIZE = 8000
# A mask of random numbers, what it makes of an input, a product of that, and one more, for which there is room where
# nothing is saved; and the gradients of the first two.
DROPOUT = (
    value("x", "primal", at=0, size=SIZE),
    value("r", "pointwise", at=1, size=SIZE, seconds=0.1),
    dataclasses.replace(value("m", "pointwise", 1, at=2, size=SIZE // 4, seconds=0.1), masks=True, hold=0.15),
    value("kept", "pointwise", 0, 2, at=3, size=SIZE, seconds=0.1),
    value("y", "extern", 3, at=4, size=SIZE, seconds=1.0),
    value("loss", "extern", 4, at=5, size=SIZE // 100, seconds=1.0, scratch=9 * SIZE),
    value("dloss", "tangent", at=6, size=SIZE // 100),
    value("b", "extern", 3, 6, at=7, size=SIZE),
    value("dx", "pointwise", 2, 7, at=8, size=SIZE),
)


def dropout(**mask) -> Candidates:
    values = (*DROPOUT[:2], dataclasses.replace(DROPOUT[2], **mask), *DROPOUT[3:])
    return Candidates(JointFacts(values, (1, 2, 3, 4, 5), (7, 8), (5,), (8,), frozenset((2, 3)), ("0",)))


def under(candidates: Candidates, bound: int, *, coarse: bool) -> float:
    least = LowerBounds(candidates, coarse=coarse).under(bound)
    assert least is not None
    return least.seconds


def test_a_mask_that_is_drawn_again_for_two_is_written():
    candidates = dropout()
    nothing = candidates.of(frozenset())
    assert nothing.seconds == pytest.approx(0.1 + 0.1 + 0.1 + 0.15 - candidates.stock_time)  # r, m, kept; m is written
    assert under(candidates, nothing.peak, coarse=True) == pytest.approx(nothing.seconds - 0.15, abs=1e-4)
    assert under(candidates, nothing.peak, coarse=False) == pytest.approx(nothing.seconds, abs=1e-4)


@pytest.mark.parametrize(("mask", "most"), [({"hold": 9.0}, 0.2), ({"masks": False}, 0.0)], ids=["dear", "no mask"])
def test_no_mask_costs_more_than_to_draw_it_once_more(mask, most):
    candidates = dropout(**mask)
    bound = candidates.of(frozenset()).peak
    added = under(candidates, bound, coarse=False) - under(candidates, bound, coarse=True)
    assert added == pytest.approx(most, abs=1e-4)


def test_between_two_readers_a_value_stands_or_what_it_is_made_of():
    values = (
        value("x", "primal", at=0, size=SIZE),
        value("scores", "extern", 0, at=1, size=SIZE, seconds=1.0),
        value("weights", "pointwise", 1, at=2, size=SIZE, seconds=0.1),
        value("out", "extern", 2, at=3, size=SIZE // 100, seconds=1.0),
        value("dout", "tangent", at=4, size=SIZE // 100),
        value("dv", "extern", 2, 4, at=5, size=SIZE),
        value("between", "extern", 5, at=6, size=SIZE),
        value("dscores", "pointwise", 2, 6, at=7, size=SIZE),
    )
    facts = JointFacts(values, (1, 2, 3), (5, 6, 7), (3,), (7,), frozenset((2,)), ("0",))
    planner = Planner(facts)
    coarse = LowerBounds(planner.candidates, coarse=True).smallest()
    assert coarse == pytest.approx(2 * SIZE + SIZE // 100, abs=SIZE // 1000)  # `dv`, `between`, the loss
    assert planner.bounds.smallest() == pytest.approx(3 * SIZE + SIZE // 100, abs=SIZE // 1000)
    assert planner.smallest().peak == 3 * SIZE + SIZE // 100


@pytest.mark.parametrize(("mask", "inlined"), [({}, {2: 1}), ({"expanded": True}, {}), ({"heavy": True}, {})])
def test_a_mask_that_is_written_in_any_case_does_not_keep_its_numbers(mask, inlined):
    bounds = LowerBounds(dropout(**mask))
    assert bounds.remade is not None and bounds.remade._inlined == inlined
