"""Planners that attempts share: by what a graph is, and what one was asked before changes no answer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import memgraph
from memgraph.backend import planners as shared
from memgraph.backend.planners import Planners
from memgraph.machine.measure import allocated_bytes
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from tests.planner.test_alike import deep
from tests.support.facts import SETTINGS, chain, graphs
from tests.support.interpreted import backend
from tests.support.lanes import examples

NODES = [((n,), 64, 1.0, True, "") for n in range(4)]
OPTIONS = {"copies": True, "recompute": True}
HOST = (Tier("host", 20.0, 20.0),)


def test_equal_facts_have_one_planner_and_others_another():
    planners = Planners()
    planner = planners.of(chain(NODES), **OPTIONS)
    assert planners.of(chain(NODES), **OPTIONS) is planner
    assert planners.of(chain(NODES, regions=2), **OPTIONS) is not planner
    assert planners.of(chain(NODES), copies=False, recompute=True) is not planner
    assert planners.of(chain(NODES), copies=True, recompute=False).uniform is None
    assert Planners().of(chain(NODES), **OPTIONS) is not planner


def test_equal_tiers_have_one_planner():
    planners = Planners()
    planner = planners.of(chain(NODES), **OPTIONS)
    sending = planners.sending(planner, Tiers(HOST))
    assert planners.sending(planner, Tiers((dataclasses.replace(HOST[0]),))) is sending
    assert planners.sending(planner, Tiers(HOST, min_bytes=8)) is not sending
    assert sending.candidates is planner.candidates
    assert sending.offloader is not None and planners.sending(planner, Tiers()).offloader is None


def test_layers_that_are_planned_alike_share_the_sweeps_and_not_the_plan():
    """And have the plan of a planner of their own."""
    planners, facts = Planners(), deep(uneven=True)
    alike = planners.of(facts, **OPTIONS)
    free = planners.of(dataclasses.replace(facts, alike=()), **OPTIONS)
    assert alike.candidates is free.candidates and alike.facts == facts and not free.facts.alike
    bound = free.stock.peak // 2
    alone = [Planner(some, copies=True).best(bound) for some in (facts, free.facts)]
    found = [planner.best(bound) for planner in (alike, free)]
    assert [c.schedule.saved for c in found] == [c.schedule.saved for c in alone]
    assert found[0].schedule.saved != found[1].schedule.saved


@settings(SETTINGS, max_examples=examples(60))
@given(graphs(), st.lists(st.integers(0, 10), min_size=1, max_size=4), st.integers(0, 10), st.booleans())
def test_what_was_asked_before_changes_no_answer(facts, before, asked, sends):
    """The bound of an attempt is asked in a later process alone, where it was accepted."""
    tiers = Tiers(HOST if sends else ())
    planners = Planners()

    def bound(planner: Planner, tenths: int) -> int:
        low, top = planner.smallest().peak, planner.stock.peak
        return low + (top - low) * tenths // 10

    for tenths in before:
        planner = planners.sending(planners.of(facts, **OPTIONS), tiers)
        planner.best(bound(planner, tenths))
    planner, alone = planners.sending(planners.of(facts, **OPTIONS), tiers), Planner(facts, offload=tiers)
    ours, theirs = (each.best(bound(each, asked)) for each in (planner, alone))
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.schedule == theirs.schedule and ours.moves == theirs.moves and ours.peak == theirs.peak


def test_attempts_at_one_graph_share_a_planner(monkeypatch):
    """A budget that no plan keeps is refused after several; another compilation has a planner of its own."""
    made, asked = [], []

    class Counted(Planner):
        def __init__(self, *args, **options) -> None:
            made.append(self)
            super().__init__(*args, **options)

    class Asked(Planners):
        def of(self, facts, **options) -> Planner:
            asked.append(facts)
            return super().of(facts, **options)

    monkeypatch.setattr(shared, "Planner", Counted)
    monkeypatch.setattr("memgraph.backend.attempts.Planners", Asked)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)])
    for compilations in (1, 2):
        torch._dynamo.reset()
        with pytest.raises(memgraph.BudgetError):
            compiled = torch.compile(model, backend=backend(budget=allocated_bytes("cpu") + 50_000))
            compiled(torch.randn(64, 32)).sum().backward()
        assert len(made) == compilations and len(asked) >= 2 * compilations
