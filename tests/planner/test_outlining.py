"""Which equal layers become bodies: what is asked for, and where it pays."""

from __future__ import annotations

import pytest

from memgraph.facts.layers import Alone, Layers
from memgraph.planner.outlining import LEAST_SAVED, WORTH, decide, may_pay

OTHER = Alone("embedding", "add_3", 20, "embedding is another operator")


def layers(count: int, length: int, operators: int) -> Layers:
    named = tuple(tuple(f"n{layer}_{place}" for place in range(length)) for layer in range(count))
    return Layers((named,), (OTHER,), operators)


MOST = layers(101, 20, 2100)  # 2,000 of 2,100 need not be compiled
FEW = layers(3, 12, 1000)
SHALLOW = layers(8, 20, 200)  # most of it, but not many


def test_nothing_is_outlined_where_it_is_off():
    assert decide(False, MOST, MOST).bodies == 0


@pytest.mark.parametrize(
    "asked, side, bodies",
    [("auto", MOST, 2), ("auto", FEW, 0), ("auto", SHALLOW, 0), (True, FEW, 2), (True, MOST, 2), (True, SHALLOW, 2)],
)
def test_auto_asks_whether_it_pays(asked, side, bodies):
    saved = side.operators - side.left
    assert (saved >= WORTH * side.operators) == (side is not FEW) and (saved >= LEAST_SAVED) == (side is MOST)
    assert decide(asked, side, side).bodies == bodies
    assert bodies == 0 or may_pay(asked, 2 * side.operators)


def test_layers_are_not_looked_for_in_graphs_that_are_too_small_for_it():
    assert [may_pay(asked, LEAST_SAVED - 1) for asked in (False, "auto", True)] == [False, False, True]
    assert [may_pay(asked, LEAST_SAVED) for asked in (False, "auto", True)] == [False, True, True]


def test_what_stays_outside_is_told_where_it_was_asked_for():
    refusals = decide(True, MOST, Layers(operators=5)).refusals
    assert [one.what for one in refusals] == ["outline:forward"]
    assert "embedding to add_3, 20 operators: embedding is another operator" in refusals[0].reason
    assert decide("auto", MOST, MOST).refusals == ()


def test_no_equal_layers_are_refused_with_a_reason():
    decided = decide(True, Layers(operators=9), Layers(operators=9))
    assert decided.bodies == 0 and decided.note() == ""
    assert [(one.what, one.reason) for one in decided.refusals] == [
        ("outline", "no 3 stretches of at least 12 operators are equal")
    ]


def test_the_report_says_what_became_of_layers():
    assert decide("auto", MOST, Layers(operators=9)).note() == (
        "outlined: 101 layers of the forward are 1 body (100 of 2100 operators compiled)"
    )
