"""On the CPU levels are counted in few launches: what a loop keeps, step by step, is seen all the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memgraph import BudgetError
from memgraph.machine.measure import allocated_bytes
from tests.support.interpreted import backend

KIB = 1024


def test_what_a_loop_keeps_is_refused_before_it_has_doubled():
    """128 KiB a step stay in a list, in a run that has less than 1 MiB to spare: told within the first eight steps."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x, kept = torch.ones(256, 64), []
    budget = allocated_bytes("cpu") + 1024 * KIB
    loss_of = torch.compile(lambda x: net(x).square().mean(), backend=backend(budget=budget))
    with pytest.raises(BudgetError, match="other tensors"):
        for _ in range(8):
            loss_of(x).backward()
            net.zero_grad()
            kept.append(torch.ones(128 * KIB // 4))
    assert len(kept) in (3, 7)  # in the fourth or the eighth launch
