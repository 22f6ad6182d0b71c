"""Attention with a mask of its own in shards of its queries, by the kernels that a card gives it."""

from __future__ import annotations

import gc
import math

import pytest
import torch

import memgraph
from memgraph.facts.actions import Tile
from memgraph.facts.masks.reach import Reach
from memgraph.reporting.report import Report
from memgraph.verify.trial import Trial
from tests.simulated.training import EXACT
from tests.support.attention import Attention, window


def measured(model: Attention, x: torch.Tensor, shards: object) -> tuple[Report, list[int]]:
    """A report, and what the allocator was asked for in each step but the first, above what stood before."""
    torch._dynamo.reset()
    gc.collect()
    tile = {"mlp": False, "loss": False, "attention": shards}
    call = torch.compile(model, backend="memgraph", options={"budget": None, "tile": tile, "cache": False})
    peaks = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        call(x).backward()
        peaks.append(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)
    return memgraph.report(), peaks[1:]


@pytest.mark.parametrize(
    "dtype, length, features",
    [pytest.param("bfloat16", 8192, 64, marks=pytest.mark.smoke), ("float32", 8000, 64), ("bfloat16", 8000, 192)],
)
def test_no_more_than_the_rows_of_a_shard_are_made(dtype, length, features):
    dtype = getattr(torch, dtype)
    model = Attention(window(700), layers=2, features=features).to("cuda", dtype)
    x = torch.randn(1, length, 2 * features, device="cuda", dtype=dtype)
    whole, peaks = measured(model, x, False)
    assert all(abs(whole.above - peak) <= EXACT for peak in peaks)
    shards, fewer = measured(model, x, 8)
    assert all(abs(shards.above - peak) <= EXACT for peak in fewer)
    assert [str(d.action) for d in shards.decisions if isinstance(d.action, Tile)] == ["tile:8"] * 2
    # A mask that is the same for all sequences and heads is one square; a shard has an eighth of it.
    assert peaks[0] - fewer[0] > length**2 * dtype.itemsize / 2


@pytest.mark.parametrize("symbolic", [False, True], ids=["a number", "a symbol"])
@pytest.mark.parametrize("length", [8192, 8000])
def test_shards_are_given_the_keys_of_a_window(length, symbolic, monkeypatch):
    """No kernel writes minus infinity here, so nothing proves what a query reads, and no trial can be run."""
    monkeypatch.setattr("memgraph.facts.masks.reach.reach_of", lambda mask: Reach(699, 0))
    monkeypatch.setattr(Trial, "run", lambda self: None)
    model = Attention(window(700), layers=2, features=64).to("cuda", torch.bfloat16)
    x = torch.randn(1, length, 128, device="cuda", dtype=torch.bfloat16)
    if symbolic:
        torch._dynamo.mark_dynamic(x, 1)
    report, peaks = measured(model, x, 8)
    assert all(abs(report.above - peak) <= EXACT for peak in peaks)
    whys = [d.why for d in report.decisions if isinstance(d.action, Tile)]
    rows = math.ceil(length / 8 / 32) * 32
    keys = length - (length - rows - 699) // 32 * 32
    assert len(whys) == 2 and all(why.endswith(f"{keys:,} of {length:,} keys") for why in whys)
