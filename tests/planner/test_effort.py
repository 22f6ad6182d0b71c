"""How much work planning is as graphs grow: counted, not timed."""

from __future__ import annotations

import dataclasses

import pytest

from memgraph.planner.leaving import Tiers
from memgraph.planner.offload import Offloader
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from tests.support.facts import chain


def swept(length: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """What is swept until values of a chain have left for half of its peak, and how many of them have."""
    facts = chain([((n,), 100, 1e-6, True, "") for n in range(length)], regions=8)
    movable = tuple(dataclasses.replace(value, movable=value.kind == "extern") for value in facts.values)
    planner = Planner(dataclasses.replace(facts, values=movable), fused=False, recompute=False)
    count = 0
    evaluate = planner.candidates.evaluate

    def counted(schedule):
        nonlocal count
        count += 1
        return evaluate(schedule)

    monkeypatch.setattr(planner.candidates, "evaluate", counted)
    offloader = Offloader(planner.candidates, Tiers((Tier("host", 1e12, 1e12),)))
    half = planner.stock.peak // 2
    found = offloader.best(half, [], least=float("inf"))
    assert found is not None and found.peak <= half
    return count, len(found.moves)


def test_what_has_to_leave_is_found_in_a_handful_of_sweeps(monkeypatch):
    short, few = swept(600, monkeypatch)  # a smaller graph is searched near its plans as well
    long, many = swept(2_400, monkeypatch)
    assert many > 3 * few
    assert long <= short + 2 and long <= 12
