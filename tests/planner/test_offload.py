"""Which values leave, and when no plan without tiers needs to be looked for."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.planner.offload import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from tests.support.facts import chain
from tests.support.graphs import capture
from tests.support.programs import Op, Program

# Found by benchmarks of all plans: its value born first takes longer to copy than the one that is born later.
LATE = Program(
    ops=(
        Op("float64", 2, 2), Op("float64", 4, 4), Op("add", 2, 4), Op("sigmoid", 2, 4), Op("project", 3, 0),
        Op("bfloat16", 4, 2), Op("gelu", 0, 2), Op("gate", 4, 0),
    ),
    outputs=(0,), batch=8, size=2, seed=0,
)  # fmt: skip


def test_a_value_that_is_born_late_may_leave_alone():
    facts = capture(LATE).facts
    planner = Planner(facts, offload=Tiers((Tier("host", 2e8, 2e8),)))
    best = planner.best(planner.stock.peak - 1)
    assert best is not None and best.seconds == 0
    assert [facts.values[move.value].name for move in best.moves] == ["sigmoid_1"]


@pytest.mark.parametrize("rate", [1e12, 1e9, 1e8])
def test_what_is_not_looked_for_would_not_have_been_chosen(rate, monkeypatch):
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(8)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    facts = dataclasses.replace(facts, values=movable)

    def seconds() -> list[float | None]:
        planner = Planner(facts, fused=False, offload=Tiers((Tier("host", rate, rate),)))
        bounds = range(planner.smallest().peak, planner.stock.peak, 200)
        return [found and found.seconds for found in map(planner.best, bounds)]

    short = seconds()
    monkeypatch.setattr(Planner, "_beats_all_kept", lambda *_: False)
    assert short == pytest.approx(seconds())
