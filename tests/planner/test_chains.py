"""The smallest budgets of chains and of unrolled recurrent networks (docs/decisions/0010)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memgraph
from memgraph.machine.measure import allocated_bytes, peak_above_start

ROWS, WIDTH = 4096, 64
ONE = ROWS * WIDTH * 4  # bytes of one activation


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def block(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), activation())


def chain(kind: str, length: int) -> nn.Module:
    make = {"tanh": lambda: block(nn.Tanh), "relu": lambda: block(nn.ReLU), "gelu": lambda: block(nn.GELU)}
    return nn.Sequential(*[make.get(kind, Residual)() for _ in range(length)])


def smallest(model: nn.Module, x: torch.Tensor) -> int:
    """The smallest budget that planning knows, less parameters and input."""
    with pytest.raises(memgraph.BudgetError) as raised:
        memgraph.plan(lambda x: model(x).pow(2).mean(), x, options={"budget": 1})
    return raised.value.minimum - sum(p.nbytes for p in model.parameters()) - x.nbytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, length, most", [("tanh", 64, 15), ("relu", 36, 11), ("gelu", 36, 15), ("residual", 36, 19)]
)
def test_the_smallest_budget_of_a_chain(kind, length, most):
    assert smallest(chain(kind, length), torch.randn(ROWS, WIDTH)) <= most * ONE


@pytest.mark.slow
def test_four_times_the_length_takes_about_twice_the_memory():
    x = torch.randn(ROWS, WIDTH)
    short, long = smallest(chain("tanh", 24), x), smallest(chain("tanh", 96), x)
    assert long <= 2.2 * short


class Unrolled(nn.Module):
    """An LSTM over `steps` steps; the last state is read."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.cell, self.steps = nn.LSTMCell(32, 32), steps

    def forward(self, x):
        state = torch.zeros_like(x), torch.zeros_like(x)
        for _ in range(self.steps):
            state = self.cell(x, state)
        return state[0]


@pytest.mark.slow
def test_an_unrolled_network_takes_a_quarter_at_the_most():
    model, x = Unrolled(40), torch.randn(64, 32)
    plain = memgraph.plan(lambda x: model(x).pow(2).mean(), x, options={"budget": None})
    assert smallest(model, x) <= 0.25 * (plain.unplanned_peak - plain.baseline)


class Often(nn.Module):
    """One large weight, read ten times through its softmax: the gradient of that is a sum of ten parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256) / 16)

    def forward(self, x):
        for _ in range(10):
            x = torch.tanh(x @ self.weight.softmax(0))
        return x


@pytest.mark.inductor
def test_sums_of_a_gradient_are_written_one_by_one():
    """Inductor holds all parts until it adds them; planned, the sum and the next part are there."""
    model, x = Often(), torch.randn(16, 256)
    part = model.weight.nbytes

    def step(backend: str, **options) -> tuple[torch.Tensor, int]:
        """The gradient, and the peak in bytes above what is allocated when a step begins."""
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: model(x).pow(2).mean(), backend=backend, options=options)
        compiled(x).backward()
        found, model.weight.grad = model.weight.grad.clone(), None
        peak = peak_above_start(lambda: compiled(x).backward(), "cpu")
        model.weight.grad = None
        return found, peak

    expected, plain = step("inductor")
    found, planned = step("memgraph", budget=allocated_bytes("cpu") + 5 * part)
    report = memgraph.report()
    assert plain > 8 * part
    assert planned <= 5 * part
    assert report.predicted_peak - report.baseline == pytest.approx(planned, abs=8192)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
