"""What the backward alone needs of the forward is computed next to what it is made of."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from memgraph.facts.actions import Fixed, FixedKind
from memgraph.facts.forward_order import order_of_forward
from memgraph.planner.schedule import make_schedule
from tests.support.graphs import capture, capture_module
from tests.support.lanes import examples
from tests.support.programs import programs


class Layers(nn.Module):
    """Two layers. What the derivative of the second needs reads a product, that of the first the input alone."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        product = torch.sin(x) @ y
        return ((product * torch.cos(product) @ y).sum(),)


@pytest.fixture(scope="module")
def facts():
    return capture_module(Layers(), (torch.ones(4, 4, requires_grad=True), torch.ones(4, 4))).facts


def names(facts, order) -> str:
    return " ".join(facts.values[i].name for i in order)


LAYERS, END = "sin mm cos mul", "mm_1 sum_1"
OF_THE_PRODUCT, OF_THE_INPUT = "sin_1 neg", "cos_1"


def test_a_derivative_is_computed_before_the_next_product(facts):
    assert names(facts, facts.stock_forward) == f"{LAYERS} {END} permute {OF_THE_PRODUCT} {OF_THE_INPUT}"
    assert names(facts, facts.forward) == f"{LAYERS} {OF_THE_PRODUCT} {END} permute {OF_THE_INPUT}"


def test_what_may_not_run_at_any_time_stays_with_all_that_it_reads_and_that_reads_it(facts):
    joint = facts.stock_forward
    late = joint[names(facts, joint).split().index("permute") :]
    for name in OF_THE_PRODUCT.split():
        fixed = Fixed(FixedKind.DRAWS, "draws random numbers")
        values = [dataclasses.replace(v, fixed=fixed) if v.name == name else v for v in facts.values]
        order = names(facts, order_of_forward(values, joint, late)).split()
        assert order[: len(f"{LAYERS} {END}".split())] == f"{LAYERS} {END}".split()
        assert [each for each in order if each in OF_THE_PRODUCT.split()] == OF_THE_PRODUCT.split()
    assert order_of_forward(facts.values, joint, ()) == joint


def test_inductors_own_choice_keeps_its_order(facts):
    for order, settle in ((facts.stock_forward, False), (facts.forward, True)):
        program = make_schedule(facts, facts.stock_saved, settle=settle).forward
        ran = program.values[program.inputs :]
        assert ran == tuple(i for i in order if i in ran)
    saved = [i for i, value in enumerate(facts.values) if value.name in ("neg", "permute")]
    programs = [make_schedule(facts, saved, settle=settle).forward.values for settle in (False, True)]
    assert programs[0] != programs[1] and sorted(programs[0]) == sorted(programs[1])


@settings(deadline=None, derandomize=True, database=None, max_examples=examples(20))
@given(programs())
def test_an_order_is_one_in_which_the_forward_can_run(program):
    facts = capture(program).facts
    joint, place = facts.stock_forward or facts.forward, {i: n for n, i in enumerate(facts.forward)}
    assert sorted(joint) == sorted(facts.forward)
    for i in facts.forward:
        assert all(place[j] < place[i] for j in facts.values[i].inputs if j in place)
    moved = moved_ahead(joint, place)
    rest = [i for i in joint if i not in moved]
    assert rest == [i for i in facts.forward if i not in moved]
    for i in moved:  # no operator that fuses with nothing runs between the last value that it reads and itself
        last = max(place[j] for j in facts.values[i].inputs if j in place)
        assert all(facts.values[j].kind != "extern" for j in facts.forward[last + 1 : place[i]])


def moved_ahead(joint, place) -> set[int]:
    """The values that run before one that was before them in the joint graph."""
    found, latest = set(), -1
    for i in joint:
        found |= {i} if place[i] < latest else set()
        latest = max(latest, place[i])
    return found
