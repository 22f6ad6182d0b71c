"""Tests that need the simulated device: `make test-simulated` runs them on it.

On a GPU (benchmarks/gpu.sh) those of them run that need a card, and nothing of a simulated one. Elsewhere none of them
is collected.
"""

import gc
from pathlib import Path

import pytest
import torch

from memgraph import simulator

# The matrix is a benchmark there (`python -m benchmarks.simulated --card here`).
ONLY_SIMULATED = ("caching_allocator", "device", "exact", "matrix", "order", "transfers")
if not simulator.here():
    left_out = ONLY_SIMULATED if torch.cuda.is_available() else ("*",)
    collect_ignore_glob = [f"test_{name}.py" for name in left_out]


@pytest.hookimpl(tryfirst=True)  # before others are left out
def pytest_collection_modifyitems(items):
    """On a GPU these are tests of it, as others are."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not simulator.here():
            item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session", autouse=True)
def few_collections():
    """Lowering a graph makes millions of objects, and little garbage that nothing else frees."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    yield
    gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Each test begins with an empty cache of the allocator.

    And what lives then is left to no garbage collection: a sixth of a training's time went into these.
    """
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()
    torch.cuda.init()  # there are no statistics before
    torch.cuda.empty_cache()
    yield
