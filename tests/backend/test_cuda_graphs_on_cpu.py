"""A mode that asks for CUDA graphs changes nothing on the CPU, where there are none."""

import pytest
import torch
from torch import nn

import memgraph


@pytest.mark.inductor
def test_a_plan_takes_as_much_with_them_as_without():
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
    peaks = []
    for asked in (False, True):
        torch._dynamo.reset()
        options = {"budget": "8MiB", "cache": False, "inductor": {"triton.cudagraphs": asked}}
        torch.compile(layers, backend="memgraph", options=options)(torch.randn(512, 64)).sum().backward()
        peaks.append(memgraph.report().above)
    assert peaks[0] == peaks[1]
