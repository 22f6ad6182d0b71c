"""Values of which one stands, in whichever way the operator's inputs are made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memgraph.planner.moments import read_moments
from memgraph.planner.narrows import Narrows
from memgraph.planner.solve import Planner
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


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (nn.functional.scaled_dot_product_attention(q, k, v).sin().sum(),)


def test_a_tuple_has_no_bytes_beside_those_of_its_elements():
    """The backward of a kernel of attention returns three gradients: at the last of them they stand once, not twice."""
    inputs = [torch.randn(1, 2, SIDE, 16, requires_grad=True) for _ in range(3)]
    facts = capture_module(Attention(), tuple(inputs)).facts
    moments = read_moments(facts, fused=True)
    narrows = Narrows(facts, moments)
    elements = [
        place
        for place, i in enumerate(facts.backward)
        if facts.values[i].inputs and facts.values[facts.values[i].inputs[0]].kind == "tuple"
    ]
    assert len(elements) == 3
    assert [narrows.at(place).bytes for place in elements] == [0, 0, 0]
    planner = Planner(facts)
    assert planner.bounds.smallest() <= planner.smallest().peak
