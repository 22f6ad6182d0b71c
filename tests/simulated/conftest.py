"""Tests that need the simulated device: `make test-simulated` runs them on it; elsewhere none of them is collected."""

import pytest

from memgraph import simulator

if not simulator.here():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Each test begins with an empty cache of the allocator."""
    import gc

    import torch

    torch._dynamo.reset()
    gc.collect()
    torch.cuda.init()  # there are no statistics before
    torch.cuda.empty_cache()
    yield
