"""Dynamo's wish to trace a function again is passed on: it is no fault of the plan."""

import warnings

import pytest
import torch
from torch import nn

import memgraph


@pytest.mark.inductor
def test_numbers_that_dynamo_first_takes_for_symbols():
    """The rate of dropout, where all is symbolic: torch finds that it is none while the graph is compiled."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.25)) for _ in range(2)])
    x, shares, losses = torch.randn(256, 32), [], []
    options = {"budget": "4GiB", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", memgraph.PlanWarning)
        for backend, chosen in (("inductor", None), ("memgraph", options)):
            torch._dynamo.reset()
            step = torch.compile(layers, backend=backend, options=chosen, dynamic=True)
            torch.manual_seed(1)
            made = step(x)
            made.sum().backward()
            shares.append((made == 0).float().mean().item())
            losses.append(made.sum().item())
    assert shares[0] == shares[1] == pytest.approx(0.25, abs=0.05) and losses[0] == losses[1]
    assert not [refusal for refusal in memgraph.report().refusals if refusal.what == "plan"]
