"""Values of which one stands, in whichever way the operator's inputs are made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memgraph.planner.bound import LowerBounds
from memgraph.planner.solve import Planner
from tests.support.graphs import capture_module

SIDE = 64


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ((torch.softmax(x @ x, dim=-1) @ x).square().sum(),)


def test_the_gradient_of_a_softmax_reads_its_result_or_what_that_is_made_of():
    facts = capture_module(Softmax(), (torch.randn(SIDE, SIDE, requires_grad=True),)).facts
    planner = Planner(facts)
    bounds = LowerBounds(planner.candidates)
    found = max(narrow.bytes for narrow, _ in bounds.relaxation.narrows.values())
    assert found >= 4 * SIDE * SIDE
    assert bounds.smallest() <= planner.smallest().peak
