"""A mode that asks for CUDA graphs changes nothing on the CPU, where there are none."""

import pytest
import torch
from torch import nn

import memgraph


@pytest.mark.inductor
def test_a_plan_takes_as_much_with_them_as_without():
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])

    def reported(budget: int | None, asked: bool) -> memgraph.Report:
        torch._dynamo.reset()
        options = {"budget": budget, "cache": False, "inductor": {"triton.cudagraphs": asked}}
        torch.compile(layers, backend="memgraph", options=options)(torch.randn(512, 64))
        return memgraph.report()

    plain = reported(None, asked=False)
    budget = plain.baseline + plain.above * 3 // 4  # other tests may have left tensors: the baseline counts them
    without, asked = (reported(budget, asked) for asked in (False, True))
    assert asked.above == without.above < plain.above
