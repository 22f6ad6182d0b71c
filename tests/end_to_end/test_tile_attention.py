"""Attention in shards of its queries, through Inductor: gradients are eager's, and the peak is lower by the mask."""

from __future__ import annotations

import functools

import pytest
import torch

import memgraph
from memgraph.facts.actions import Tile
from memgraph.machine.measure import peak_above_start
from tests.facts.test_scores import Composed
from tests.support import card_kernels
from tests.support.attention import HEADS, WIDTH, Attention, padded, window

pytestmark = [pytest.mark.inductor, pytest.mark.slow]
LENGTH = 1536


def gradients(call, model, *given):
    model.zero_grad(set_to_none=True)
    loss = call(*given)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("name", ["cpu", "efficient", "cudnn"])
def test_a_window_that_no_graph_makes(name):
    """By the CPU's kernel, and by the operators of a card's with it behind them, which take more than they return."""
    torch.manual_seed(0)
    attend = None if name == "cpu" else getattr(card_kernels, name)
    model, x = Attention(window(100), attend=attend), torch.randn(1, LENGTH, 8)
    with card_kernels.on_the_cpu():
        check(model, x, exact=name == "cpu")


@pytest.mark.parametrize("name", ["cpu", "efficient", "cudnn"])
@pytest.mark.parametrize("mask", [window(100), padded])
def test_one_graph_for_all_lengths(name, mask):
    """Peaks are predicted for the length of each launch, and gradients are eager's."""
    torch.manual_seed(0)
    attend = None if name == "cpu" else getattr(card_kernels, name)
    model, lengths = Attention(mask, attend=attend), (LENGTH, 1200, 800, 2400)
    torch._dynamo.reset()
    options = {"budget": None, "tile": {"mlp": False, "loss": False, "attention": 4}, "cache": False}
    call = torch.compile(model, backend="memgraph", dynamic=True, options=options)
    reports = []
    with card_kernels.on_the_cpu():
        for length in lengths:
            x, real = torch.randn(1, length, 8), (torch.arange(length) < length - 50).long()[None]
            given = (x, real) if mask is padded else (x,)
            want, got = (gradients(functools.partial(f, *given), model) for f in (model, call))
            assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 1e-6, length
            peak = peak_above_start(lambda: gradients(functools.partial(call, *given), model))  # noqa: B023
            assert peak < (2 if name == "cpu" else 4) * length**2, length  # half of the mask, or all of it
            reports.append(memgraph.report())
            if name == "cpu" and length == LENGTH:
                assert abs(reports[0].predicted_peak - reports[0].baseline - peak) < 0.02 * peak
    assert all(report is reports[0] for report in reports)  # nothing was compiled again


def test_a_bias_of_all_layers_leaves_no_square():
    """Neither scores nor the gradient of a bias that a table holds are made for all queries, forward or backward."""
    torch.manual_seed(0)
    model, x = Composed(layers=2, bias=True, masked=False), torch.randn(1, LENGTH, WIDTH)
    whole = gradients(model, model, x)
    torch._dynamo.reset()
    tile = {"mlp": False, "loss": False, "attention": 8}
    call = torch.compile(model, backend="memgraph", options={"budget": None, "tile": tile, "cache": False})
    got, report = gradients(call, model, x), memgraph.report()
    exact = gradients(model.double(), model, x.double())
    for true, one, other in zip(exact, whole, got, strict=True):  # eager's sum of a million numbers is 1e-5 off
        assert (other - true).norm() <= max(1e-6 * true.norm(), (one - true).norm())
    model.float()
    peak = peak_above_start(lambda: gradients(call, model, x))
    assert abs(report.predicted_peak - report.baseline - peak) < 0.02 * peak
    assert peak < 4 * HEADS * LENGTH**2  # one of them


def check(model, x, *, exact: bool) -> None:
    want = gradients(model, model, x)
    torch._dynamo.reset()
    tile = {"mlp": False, "loss": False, "attention": 8}
    call = torch.compile(model, backend="memgraph", options={"budget": None, "tile": tile, "cache": False})
    got = gradients(call, model, x)
    assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 1e-6
    peak, report = peak_above_start(lambda: gradients(call, model, x)), memgraph.report()
    (decision,) = (d for d in report.decisions if isinstance(d.action, Tile))
    assert decision.action == Tile(8) and decision.bytes == 4 * LENGTH**2
    # 192 queries, and the 99 keys before the first, to a whole number of vectors or blocks.
    assert decision.why.endswith(f"each shard is given {304 if exact else 320} of 1,536 keys")
    assert not exact or abs(report.predicted_peak - report.baseline - peak) < 0.02 * peak
    assert peak < 2 * LENGTH**2  # half of the mask
