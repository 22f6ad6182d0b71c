"""Outlined graphs through Inductor: gradients, peaks, and what a body may write over."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memgraph
from memgraph.machine.measure import peak_above_start

pytestmark = pytest.mark.inductor


class Layer(nn.Module):
    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.up, self.down, self.rate = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), rate

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(x))), self.rate)


class Model(nn.Module):
    def __init__(self, layers: int = 7, width: int = 32, rate: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, rate) for _ in range(layers))

    def forward(self, x):
        states = []
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        return x.square().mean(), states


def step(outline: bool, budget) -> tuple[list[torch.Tensor], memgraph.Report, int]:
    """Loss, states and gradients of a step; its report; its peak above what stands, by the profiler."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(), torch.randn(64, 32)
    options = {"budget": budget, "outline": outline, "cache": False}
    compiled = torch.compile(model, backend="memgraph", options=options)

    def run() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        loss, states = compiled(x)
        loss.backward()
        return [loss.detach(), *(state.detach() for state in states)]

    found = run()
    found += [parameter.grad.clone() for parameter in model.parameters()]
    report = memgraph.report()
    model.zero_grad(set_to_none=True)
    return found, report, peak_above_start(run, "cpu")


# With a share there is a caller that reuses buffers (the forward), and one whose bodies write over them (the backward).
@pytest.mark.slow
def test_a_step_is_the_same_and_its_peak_is_known():
    plain, before, _ = step(False, 0.75)
    # Two plans under one budget may leave more or less of it: with bodies, what the other one took is to be enough.
    taken = 0.75 * before.above / (before.budget - before.baseline)
    outlined, after, measured = step(True, 1.01 * taken)
    assert any(note.startswith("outlined") for note in after.notes)
    for mine, theirs in zip(outlined, plain, strict=True):  # the masks of dropout are equal, too
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert after.source_of_peak == "inductor wrapper"
    assert abs(measured - after.above) <= 64
    assert after.above <= 1.01 * before.above
