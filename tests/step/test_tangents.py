"""A tangent stands when a backward begins, and the backward's plan counts it: it is counted once."""

import gc

import pytest
import torch
from torch import nn

from memgraph.machine.measure import allocated_bytes
from memgraph.step import run
from tests.support.interpreted import backend

WIDTH, TOKENS = 64, 1024
OUTPUT = 4 * WIDTH * TOKENS  # bytes


class Block(nn.Module):
    """Its backward reaches more than its forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def test_blocks_one_by_one_reach_what_is_predicted_but_for_the_outputs_that_are_gone():
    torch._dynamo.reset()
    gc.collect()
    blocks = [Block() for _ in range(3)]
    compiled = [torch.compile(block, backend=backend(budget=allocated_bytes("cpu") + 64 * OUTPUT)) for block in blocks]
    for _ in range(2):
        x = torch.randn(TOKENS, WIDTH)
        for block in compiled:
            x = block(x)
        x.square().mean().backward()
        del x
        for block in blocks:
            block.zero_grad()
    run.current().stop_recording()
    launches = run.current().round
    assert [launch.given for launch in launches] == [OUTPUT] * 3
    for launch in launches:
        assert launch.envelope.backward > launch.envelope.forward
        more = launch.predicted_above - launch.measured_above
        assert -1024 <= more <= OUTPUT + 1024
        assert launch.predicted_peak - launch.measured_peak == pytest.approx(more, abs=1024)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_compiled_autograd_may_trace_the_hooks():
    torch._dynamo.reset()
    gc.collect()
    block = Block()
    compiled = torch.compile(lambda x: block(x).square().mean(), backend=backend(budget="1GiB"))
    for _ in range(3):
        x = torch.randn(TOKENS, WIDTH)
        block.zero_grad()
        block(x).square().mean().backward()
        wanted = block.linear.weight.grad
        block.zero_grad()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            compiled(x).backward()
        torch.testing.assert_close(block.linear.weight.grad, wanted)
