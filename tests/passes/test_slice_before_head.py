"""Rows that a loss leaves out are left out of what the head reads, however its operands are given."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.options import TileOptions
from tests.support.masks import captured

H, W = torch.randn(2, 9, 4), torch.randn(30, 4)

LOSSES = {
    "by place": (lambda h, w: F.linear(h, w)[..., :-1, :].sum(), True),
    "by keyword": (lambda h, w: F.linear(input=h, weight=w)[..., :-1, :].sum(), False),
    "by keyword on the way": (lambda h, w: torch.tanh(input=F.linear(h, w))[..., :-1, :].sum(), False),
}


@pytest.mark.parametrize("loss, moved", LOSSES.values(), ids=LOSSES)
def test_the_head_reads_fewer_rows(loss, moved):
    before = captured(loss, H, W)
    after = before_autograd(before, TileOptions()).graphs
    (head,) = after.module.graph.find_nodes(op="call_function", target=torch._C._nn.linear)
    assert head.meta["example_value"].shape[1] == (8 if moved else 9)
    torch.testing.assert_close(after.module(H, W)[0], before.module(H, W)[0])
