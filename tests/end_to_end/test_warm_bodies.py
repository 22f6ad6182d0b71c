"""A graph with bodies, loaded from warm caches: nothing stands afterwards that did not stand the first time."""

import gc

import pytest
import torch

from memgraph.machine.measure import allocated_bytes
from tests.facts.test_scores import Composed
from tests.support.attention import DTYPE, WIDTH
from tests.support.processes import in_a_process

LENGTH = 64


def after_a_step() -> tuple[float, int, int]:
    """All gradients added up, the bytes that stand after a step and its gradients, and loads of graphs by Inductor."""
    torch.manual_seed(0)
    module = Composed(sinks=True).to(DTYPE)
    x = torch.randn(2, LENGTH, WIDTH, dtype=DTYPE)
    options = {"budget": "1GiB", "tile": {"attention": 4}}  # "auto" would go by what other processes leave free
    loss_of = torch.compile(module, backend="memgraph", options=options)
    loss_of(x).backward()
    total = sum(float(parameter.grad.sum()) for parameter in module.parameters())
    module.zero_grad()
    gc.collect()
    return total, allocated_bytes("cpu"), torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]


@pytest.mark.inductor
def test_a_warm_cache_leaves_no_tensor_behind(tmp_path):
    """A tile's backward makes zeros of its scores' size; loaded by running its code, these would be real ones."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "MEMGRAPH_CACHE": str(tmp_path / "m")}
    cold, warm = (in_a_process(after_a_step, environment=caches) for _ in range(2))
    assert warm[:2] == cold[:2]
    assert (cold[2], warm[2]) == (0, 2), "both graphs are found, and nothing is lowered"
