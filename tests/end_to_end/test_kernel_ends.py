"""A budget that only a plan with ends of kernels keeps as cheaply: attention with dropout is products and a softmax."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import memgraph
from memgraph.backend import attempts
from memgraph.backend.attempt import Next, first_attempt
from memgraph.machine.measure import peak_above_start
from tests.support.models.sized import Shape, make

pytestmark = pytest.mark.inductor

VERSION = ".".join(torch.__version__.split(".")[:2])
SHAPE = Shape(layers=2, hidden=64, sequence=256, vocabulary=256, dropout=0.1)


def trained(case, **options) -> tuple[torch.Tensor, list[torch.Tensor], memgraph.Report, int]:
    """The loss and the gradients of a step, what the report says, and what another step allocates at most."""
    torch._dynamo.reset()
    compiled = torch.compile(case.loss, backend="memgraph", options={"cache": False} | options)

    def step() -> torch.Tensor:
        torch.manual_seed(3)
        loss = compiled(*case.inputs)
        loss.backward()
        return loss.detach()

    def gradients() -> list[torch.Tensor]:
        found = [parameter.grad for parameter in case.model.parameters()]
        case.model.zero_grad()
        return found

    loss = step()
    report = memgraph.report()
    gradients()
    peak = peak_above_start(step)
    return loss, gradients(), report, peak


def ended_at_once(*args, **named) -> Next:
    """The first attempt, with ends: some versions of torch lower this model's plan without them well enough."""
    first = first_attempt(*args, **named)
    return dataclasses.replace(first, bound=dataclasses.replace(first.bound, kernel_ends=True))


def test_the_first_plan_is_kept_and_computes_what_it_did(monkeypatch):
    case = make("llama", SHAPE)
    step = memgraph.plan(case.loss, *case.inputs)
    budget = step.predicted_peak - int(step.above * 0.44)
    if VERSION != "2.13":
        monkeypatch.setattr(attempts, "first_attempt", ended_at_once)
    loss, gradients, report, peak = trained(case, budget=budget)
    assert report.attempts == (2 if VERSION == "2.13" else 1)
    assert any("kernels end in" in note for note in report.notes)
    (planned,) = report.plan.graphs
    assert planned.plan.kernel_ends
    assert report.predicted_peak <= budget and report.above <= planned.plan.peak * 1.01
    assert peak <= report.above
    plain_loss, plain_gradients, _, _ = trained(case)
    assert torch.equal(loss, plain_loss)
    for one, other in zip(gradients, plain_gradients, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()
