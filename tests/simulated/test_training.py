"""Training under a budget on the simulated device: what was predicted against what the allocator was asked for."""

from __future__ import annotations

from tests.simulated.training import check, train

MIB = 1024**2


def test_budgets():
    """Without one, a share, and bytes; of a model that is no transformer, which the matrix has."""
    plain = train("perceptron", {"budget": None})
    share = train("perceptron", {"budget": 0.8})
    budget = plain.report.baseline + int(0.84 * plain.predicted) + 2 * MIB
    for found in (plain, share, train("perceptron", {"budget": budget})):
        check(found)
    assert share.predicted < 0.9 * plain.predicted


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
