"""Values of which one stands, in whichever way the operator's inputs are made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memgraph.planner.moments import read_moments
from memgraph.planner.narrows import Narrows
from tests.support.graphs import capture_module

SIDE = 64


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ((torch.softmax(x @ x, dim=-1) @ x).square().sum(),)


def test_the_gradient_of_a_softmax_reads_its_result_or_what_that_is_made_of():
    facts = capture_module(Softmax(), (torch.randn(SIDE, SIDE, requires_grad=True),)).facts
    narrows = Narrows(facts, read_moments(facts, fused=True))
    place = next(p for p, i in enumerate(facts.backward) if facts.values[i].name == "fma")
    found = narrows.at(place)
    # The gradient of the weights, and the weights or the scores: one of these stands beside it.
    names = {facts.values[i].name for i in found.storages}
    assert {"mm", "exp", "div", "mm_3"} <= names
    assert found.bytes == 2 * 4 * SIDE * SIDE
    product = narrows.at(place + 1)  # it reads what surely stands
    assert product.bytes == 0
