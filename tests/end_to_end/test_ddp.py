"""DDP has all graphs of a step compiled before the first of them runs: a budget that is too small is refused there."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import memgraph
from memgraph.step import run
from tests.support import interpreted
from tests.support.processes import in_a_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]
TOKENS, WIDTH, MIB = 512, 384, 1 << 20


class Layers(nn.Module):
    """Six layers; a bucket holds two."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)).tanh()
        return x.square().mean()


def steps(budget):
    """Three steps under a budget: the peaks, and how many graphs there were."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layers()
    model.compile(backend=interpreted.backend(budget=budget))
    module, x = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1), torch.randn(TOKENS, WIDTH)
    optimizer, peaks = torch.optim.SGD(model.parameters()), []
    for _ in range(3):
        peaks.append(memgraph.measure_peak(lambda: module(x).backward()))
        optimizer.step()
        optimizer.zero_grad()
    return peaks, len(run.current().round)


def of_a_process(folder, budget):
    """What the steps of one process take, or the budget that its refusal names, and how many graphs were launched."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{budget}", rank=0, world_size=1)
    try:
        return steps(budget)
    except memgraph.BudgetError as error:
        return error.minimum, len(run.current().round)
    finally:
        dist.destroy_process_group()


def test_a_budget_is_refused_before_the_first_graph_runs_and_what_is_named_does(tmp_path):
    plain, graphs = in_a_process(of_a_process, str(tmp_path), 1024 * MIB)
    minimum, launched = in_a_process(of_a_process, str(tmp_path), 12 * MIB)
    assert graphs == 3 and not launched and 12 * MIB < minimum < min(plain)
    kept, _ = in_a_process(of_a_process, str(tmp_path), minimum)
    first, _, third = kept  # the second one frees the buckets that DDP has had, which `measure_peak` does not see
    assert first <= minimum and third <= minimum
