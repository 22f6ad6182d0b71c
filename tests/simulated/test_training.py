"""Training under a budget on the simulated device: what was predicted against what the allocator was asked for."""

from __future__ import annotations

from functools import cache

import pytest

from tests.simulated.training import Trained, check, train

MIB = 1024**2
MODELS = ["perceptron", "llama", "gpt2"]
SHARES = {"perceptron": 0.8, "llama": 0.5, "gpt2": 0.85}


@cache
def plain(name: str) -> Trained:
    return train(name, {"budget": None})


@pytest.mark.parametrize("name", MODELS)
def test_without_a_budget(name):
    check(plain(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_share(name):
    found = train(name, {"budget": SHARES[name]})
    check(found)
    assert found.predicted < 0.9 * plain(name).predicted


@pytest.mark.parametrize("name", MODELS)
def test_bytes(name):
    before = plain(name)
    budget = before.report.baseline + int(SHARES[name] * 1.05 * before.predicted) + 2 * MIB
    check(train(name, {"budget": budget}))


def test_values_go_to_the_host():
    found = train("llama", {"budget": 0.7, "offload": {"host": True, "min_bytes": "256KiB"}, "recompute": False})
    check(found)
    assert found.report.bytes_on("host") > MIB


def test_attention_bound():
    """Flash attention's backward keeps sums in float32, which are a large part of the step's peak."""
    found = train("llama", {"budget": None}, length=8192, batch=1)
    check(found)


def test_workspaces_stand_in_the_baseline():
    """The first products of a process take 64 MiB on Hopper: before the level is read, not within the step."""
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    found = train("perceptron", {"budget": None})
    check(found)
    assert found.report.baseline >= 64 * MIB
    assert found.report.baseline - found.baseline < MIB
