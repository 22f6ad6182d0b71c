"""What puts shards together: sums of products in float32, on either device in the way that suits it."""

from __future__ import annotations

import pytest
import torch

from memgraph.facts import kernel_scratch
from memgraph.machine.measure import peak_above_start
from memgraph.runtime import tile_ops

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_GPU])]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def factors(dtype: torch.dtype, device: str, tokens: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    left, right = (torch.randn(tokens, width, generator=generator) for width in (300, 40))
    return left.to(device, dtype).T, right.to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_shards_add_up_in_float32(dtype, device, monkeypatch):
    monkeypatch.setattr(tile_ops, "BLOCK", 4 * 96 * 64)  # five blocks of rows on the CPU
    one, other = factors(dtype, device), factors(dtype, device, tokens=80)
    total = tile_ops.shard_product(*one)
    assert total.dtype == (dtype if dtype is torch.float64 else torch.float32)
    before = total.clone()
    functional = tile_ops.shard_add(total, *other)
    assert torch.equal(total, before)
    tile_ops.shard_add_(total, *other)
    assert torch.equal(total, functional)
    want = sum(left.double() @ right.double() for left, right in (one, other))
    assert float((total - want).norm() / want.norm()) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_held_beside_is_known(dtype, device, monkeypatch):
    monkeypatch.setattr(tile_ops, "BLOCK", 4 * 96 * 64)
    left, right = factors(dtype, device)
    total = tile_ops.shard_product(left, right)
    tile_ops.shard_add_(total, left, right)  # cuBLAS takes its workspace once
    held = peak_above_start(lambda: tile_ops.shard_add_(total, left, right), device)
    assert held == kernel_scratch.of_operator(torch.ops.memgraph.shard_add_, (total, left, right), {}, None, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shard_without_tokens_adds_nothing(dtype):
    """Fewer tokens than shards: the factors meet in a dimension of no size."""
    left, right = torch.ones(3, 0, dtype=dtype), torch.ones(0, 5, dtype=dtype)
    total = torch.ones(3, 5)
    tile_ops.shard_add_(total, left, right)
    assert torch.equal(total, torch.ones(3, 5))
    assert tile_ops.scratch(left.shape, right.shape, dtype) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_part_of_the_rows_is_added_at_its_place(dtype, device):
    generator = torch.Generator().manual_seed(0)
    part = torch.randn(2, 3, 5, 4, generator=generator).to(device, dtype)
    total = torch.randn(2, 3, 9, 4, generator=generator).to(device, tile_ops.accumulator(dtype))
    want = total.clone()
    want[:, :, 3:8] += part
    assert torch.equal(tile_ops.shard_sum(total, part, 2, 3), want) and not torch.equal(total, want)
    tile_ops.shard_sum_(total, part, 2, 3)
    assert torch.equal(total, want)
    held = peak_above_start(lambda: tile_ops.shard_sum_(total, part, 2, 3), device)
    assert held == tile_ops.sum_scratch(part.shape, dtype, device == "cuda")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_begins_with_a_part_at_its_place(dtype, device):
    part = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    total = torch.ops.memgraph.shard_total(part, 2, 3, 9)
    assert total.dtype == tile_ops.accumulator(dtype) and total.shape == (2, 3, 9, 4)
    assert torch.equal(total[:, :, 3:8], part.to(total.dtype))
    assert not total[:, :, :3].any() and not total[:, :, 8:].any()
    held = peak_above_start(lambda: torch.ops.memgraph.shard_total(part, 2, 3, 9), device)
    assert held == total.nbytes


def test_the_keys_of_a_shard_are_a_view():
    whole = torch.arange(24.0).view(2, 3, 4).transpose(1, 2)
    part = torch.ops.memgraph.shard_keys(whole, 1, 1, 2)
    assert torch.equal(part, whole[:, 1:3]) and part.data_ptr() == whole[:, 1:].data_ptr()
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        torch.ops.memgraph.shard_keys(whole, 1, 3, 2)
    torch.library.opcheck(torch.ops.memgraph.shard_keys.default, (whole, 1, 1, 2), test_utils="test_faketensor")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_add_up_where_the_sum_is(dtype, device):
    """Sum and part lie in another order than their dimensions, as gradients of attention do."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(2, 5, 3, 4, generator=generator).to(device, dtype).transpose(1, 2) for _ in range(2))
    total = one.to(tile_ops.accumulator(dtype), copy=True)
    functional = tile_ops.shard_sum(total, other)
    assert torch.equal(total, one.to(total.dtype)) and functional.dtype == total.dtype
    tile_ops.shard_sum_(total, other)
    assert torch.equal(total, functional) and torch.equal(total, one.to(total.dtype) + other.to(total.dtype))
    held = peak_above_start(lambda: tile_ops.shard_sum_(total, other), device)
    assert held == tile_ops.sum_scratch(other.shape, dtype, device == "cuda")
