"""Small programs that leave little or nothing to plan: memgraph compiles what Inductor compiles, with its numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from memgraph import PlanWarning
from memgraph.machine.measure import allocated_bytes

pytestmark = [pytest.mark.inductor, pytest.mark.slow]

torch.manual_seed(0)
LINEAR = nn.Linear(8, 8)


def x_plus_one(x, y):
    return x + 1


def x_plus_y(x, y):
    return x + y


def dropout_of_nothing(x, y):
    return nn.functional.dropout(x, 0.0)


def residual_behind_a_break(x, y):
    h = LINEAR(x)
    torch._dynamo.graph_break()
    return x + h


def add_between_breaks(x, y):
    h = LINEAR(x)
    torch._dynamo.graph_break()
    z = x + h
    torch._dynamo.graph_break()
    return torch.tanh(z).sum()


def argmax(x, y):
    return x.argmax(-1)


def accuracy(x, y):
    return (LINEAR(x).argmax(-1) == 0).float().mean()


def positive(x, y):
    return x > 0


def detached(x, y):
    return x.detach().sum()


def view(x, y):
    return x.view(64)


def flattened(x, y):
    return x.flatten(), y.transpose(0, 1)


def no_grad_within(x, y):
    with torch.no_grad():
        return LINEAR(x)


PROGRAMS = (
    x_plus_one,
    x_plus_y,
    dropout_of_nothing,
    residual_behind_a_break,
    add_between_breaks,
    argmax,
    accuracy,
    positive,
    detached,
    view,
    flattened,
    no_grad_within,
)


def run(program: Callable, backend: str, **options) -> list[torch.Tensor]:
    """Outputs and gradients of one step on a fresh compile."""
    torch._dynamo.reset()
    LINEAR.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, 8, generator=generator, requires_grad=True) for _ in range(2))
    outputs = torch.compile(program, backend=backend, options=options or None)(x, y)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((output * output).sum() for output in outputs if output.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    leaves = (x, y, LINEAR.weight, LINEAR.bias)
    return [*(output.detach().clone() for output in outputs), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("budget", ["none", "half", "absolute"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_inductor_has_it(program, budget):
    want = run(program, "inductor")
    bound = {"none": None, "half": 0.5, "absolute": allocated_bytes() + 2**20}[budget]
    with warnings.catch_warnings():  # a share of nothing is spoken of; no other graph runs without a plan
        warnings.filterwarnings("ignore", ".*no plan of this graph has a lower peak", PlanWarning)
        found = run(program, "memgraph", budget=bound)
    assert len(found) == len(want)
    for mine, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(mine, theirs)
