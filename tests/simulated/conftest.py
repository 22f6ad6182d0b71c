"""Tests that need the simulated device: `make test-simulated` runs them on it; elsewhere none of them is collected."""

import gc

import pytest

from memgraph import simulator

if not simulator.here():
    collect_ignore_glob = ["test_*.py"]


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
    import torch

    torch._dynamo.reset()
    gc.collect()
    gc.freeze()
    torch.cuda.init()  # there are no statistics before
    torch.cuda.empty_cache()
    yield
