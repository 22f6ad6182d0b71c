"""An optimizer's step that the user compiles: Dynamo traces the hooks of it, ours among them."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from memgraph.step.run import current
from tests.support.interpreted import backend


def test_a_compiled_step_is_noticed_and_left_alone():
    """Its trace meets nothing of ours that it would warn of; at the next launch the state is known to be there."""
    torch._dynamo.reset()
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    optimizer = torch.optim.AdamW(net.parameters(), torch.tensor(1e-3))
    loss_of = torch.compile(lambda x: net(x).square().mean(), backend=backend(budget="1GiB"))
    step = torch.compile(optimizer.step, backend="eager")
    to_come, generations = [], []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(get_ident|lru_cache)")
        for _ in range(3):
            loss_of(torch.ones(4, 16)).backward()
            to_come.append(current().round[-1].entry.to_come)
            generations.append(current().generation)
            step()
            optimizer.zero_grad()
    assert to_come[0] > 0 and to_come[1:] == [0, 0]
    assert generations[1] == generations[2] == generations[0] + 1
