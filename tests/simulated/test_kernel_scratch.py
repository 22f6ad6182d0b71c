"""The rules for scratch memory of CUDA's kernels against ATen's host code, operator by operator, to the byte."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from memgraph import simulator
from memgraph.base.compat import tree_leaves
from memgraph.facts.kernel_scratch import Kernels, cuda, looking_up, of_operator, trial
from memgraph.facts.kernel_scratch.operands import Call

pytestmark = pytest.mark.smoke
aten = torch.ops.aten
HALF, SINGLE = torch.bfloat16, torch.float32

# batch, heads of queries, heads of keys, queries, keys, width
SHAPES = [
    (4, 16, 16, 2048, 2048, 128),
    (2, 16, 4, 2048, 2048, 128),
    (2, 8, 8, 1000, 1000, 64),
    (2, 8, 8, 1000, 1000, 80),
    (1, 4, 4, 333, 333, 96),
    (1, 8, 2, 777, 777, 64),
    (1, 4, 4, 512, 512, 192),
    (1, 4, 4, 512, 512, 160),
    (1, 8, 8, 256, 1024, 256),
    (1, 4, 4, 1000, 1000, 224),
    (8, 32, 32, 333, 333, 256),
    (1, 4, 4, 512, 512, 40),
    (1, 2, 2, 64, 8192, 128),
    (3, 67, 67, 100, 100, 32),
]
PLAIN = [shape for shape in SHAPES if shape[1] == shape[2]]  # others are expanded before they come to this kernel


def lying(batch: int, heads: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """A tensor [batch, heads, length, width] that lies in memory as a linear layer leaves it."""
    return torch.empty(batch, length, heads, width, dtype=dtype, device="cuda").transpose(1, 2)


def measured(run) -> tuple[object, int]:
    """What an operator returns, and the bytes that it holds beyond that."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    returned = run()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    tensors = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor) and leaf.is_cuda]
    kept = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return returned, peak - before - sum(kept.values())


def held(op, *args, tried: bool = False, **kwargs) -> object:
    """What the operator returns, once the rule has said how much it takes; and a trial, where it is tried."""
    returned, found = measured(lambda: op(*args, **kwargs))
    call = Call.of(op, args, kwargs, returned)
    if tried and call.named["query"].size[1] == call.named["key"].size[1]:
        assert cuda.RULES[call.name](call) == found
    room = 1 << 33 if tried else 0
    with looking_up(Kernels(room)) as kernels:
        assert of_operator(op, args, kwargs, returned, "cuda") == found
    assert not kernels.notes
    return returned


def attention(batch, heads, grouped, queries, keys, width, dtype=HALF) -> tuple[Tensor, Tensor, Tensor]:
    value = (lying(batch, grouped, keys, width, dtype) for _ in range(2))
    return lying(batch, heads, queries, width, dtype), *value


@pytest.fixture(params=[False, True], ids=["", "deterministic"])
def deterministic(request):
    torch.use_deterministic_algorithms(request.param)
    yield request.param
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flash_attention(shape, dropout, deterministic):
    query, key, value = attention(*shape)
    causal = shape[3] == shape[4]
    out = held(aten._scaled_dot_product_flash_attention.default, query, key, value, dropout, causal, False)
    for gradient in (torch.empty_like(query), torch.empty(query.shape, dtype=HALF, device="cuda")):
        given = (gradient, query, key, value, *out[:6], dropout, causal, out[6], out[7])
        held(aten._scaled_dot_product_flash_attention_backward.default, *given)


@pytest.mark.parametrize("mask", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
@pytest.mark.parametrize("shape", PLAIN, ids=str)
def test_efficient_attention(shape, dtype, dropout, mask):
    query, key, value = attention(*shape, dtype)
    batch, heads, _, queries, keys, _ = shape
    causal, bias = not mask and queries == keys, None
    if mask:  # rows of 8, as attention with a mask lays them out
        rows = torch.empty(batch, 1, queries, -(-keys // 8) * 8, dtype=dtype, device="cuda")
        bias = rows[..., :keys].expand(batch, heads, queries, keys)
    out = held(aten._scaled_dot_product_efficient_attention.default, query, key, value, bias, True, dropout, causal)
    wanted = [True, True, True, False]
    for gradient in (torch.empty_like(out[0]), torch.empty(query.shape, dtype=dtype, device="cuda")):
        given = (gradient, query, key, value, bias, *out[:4], dropout, wanted, causal)
        held(aten._scaled_dot_product_efficient_attention_backward.default, *given)


def empty(*size: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cuda")


@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
def test_products(dtype):
    """Beside their workspace they take nothing: it is kept by the first product, or a part of each (torch 2.15)."""
    rows, weight, bias = empty(8192, 1024, dtype=dtype), empty(1024, 1024, dtype=dtype), empty(1024, dtype=dtype)
    full, added = empty(8192, 1024, dtype=dtype), empty(1024, 2, dtype=dtype)[:, 0]
    _ = torch.addmm(bias, rows, weight @ weight)  # those that are kept
    held(aten.mm.default, rows, weight)
    held(aten.mm.default, rows, weight.t())
    for one in (bias, added, full, empty(1024, 8192, dtype=dtype).t(), bias.expand(8192, 1024)):
        held(aten.addmm.default, one, rows, weight)
    held(aten.addmm.default, bias, rows, weight, beta=0.5)
    held(aten.addmm.default, bias, rows, weight, alpha=2)
    held(aten.addmm.default, bias, rows[:1], weight)
    held(aten._addmm_activation.default, bias, rows, weight, use_gelu=True)
    held(aten.bmm.default, empty(16, 512, 64, dtype=dtype), empty(16, 64, 512, dtype=dtype))
    squares = [empty(16, 512, width, dtype=dtype) for width in (512, 64)]
    held(aten.baddbmm.default, squares[0], squares[1], empty(16, 64, 512, dtype=dtype))
    total = empty(8192, 1024, dtype=SINGLE)
    _, found = measured(lambda: torch.ops.memgraph.shard_add_(total, rows, weight))
    assert of_operator(torch.ops.memgraph.shard_add_, (total, rows, weight), {}, None, "cuda") == found
    if dtype is HALF:
        held(aten.mm.dtype, rows, weight, SINGLE)
        held(aten.addmm.dtype, full.float(), rows, weight, SINGLE)


def test_products_of_eight_bits():
    factor, scale = empty(1024, 1024, dtype=torch.float8_e4m3fn), empty(dtype=SINGLE)
    _ = aten._scaled_mm.default(factor, factor.t(), scale, scale, out_dtype=HALF)  # takes the workspace that is kept
    held(aten._scaled_mm.default, factor, factor.t(), scale, scale, out_dtype=HALF)


@pytest.mark.parametrize("columns", [1, 30, 128, 131, 512, 1024, 4096, 5120, 14336])
@pytest.mark.parametrize("rows", [2, 16, 100, 255, 256, 512, 1000, 1024, 1025, 2048, 5000, 16384])
def test_sums_over_rows(rows, columns):
    held(aten.sum.dim_IntList, empty(rows, columns, dtype=SINGLE), [0])
    held(aten.amax.default, empty(rows, columns, dtype=SINGLE), [0])


ROWS = [(4096,), (4097,), (5000,), (300_000,), (100_000_000,), (1, 4096), (4, 1025), (4, 4097), (3, 8192), (127, 4097),
        (128, 4097), (300, 10_000), (3, 1_000_001), (64, 128_256), (2, 3, 5000), (2, 100, 5000)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bool, HALF, SINGLE, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_sort(shape, dtype):
    if dtype.itemsize < 4 and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("there is no rule")
    held(aten.sort.stable, empty(*shape, dtype=dtype), stable=False, dim=-1)
    held(aten.sort.default, empty(*shape, dtype=dtype), len(shape) - 1, True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, SINGLE, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("shape, dim", [((1,), 0), ((1, 4096), 1), ((1_000_000,), 0), ((100_000_000,), 0),
                                        ((2, 1024), 1), ((8192, 4), 0), ((8, 1), 0), ((1024, 8, 1), 0)])  # fmt: skip
def test_cumsum(shape, dim, dtype):
    held(aten.cumsum.default, empty(*shape, dtype=dtype), dim)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("words", [1, 256, 257, 32_000, 65_537])
@pytest.mark.parametrize("index", [(1,), (1000,), (2304,), (2305,), (8192,), (2, 4096), (1_000_000,)], ids=str)
def test_index_put(index, words, accumulate):
    target, indices = empty(words, 64), torch.zeros(index, dtype=torch.int64, device="cuda")
    for values in (empty(*index, 64), empty(1, 64)):
        held(aten.index_put.default, target, [indices], values, accumulate)


@pytest.mark.parametrize("experts", [2, 8, 128])
@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
def test_grouped_products(experts, dtype):
    offsets = torch.full((experts,), 64, dtype=torch.int32, device="cuda")
    rows, out = empty(2048, 256, dtype=dtype), empty(2048, 512, dtype=dtype)
    weights = empty(experts, 256, 512, dtype=dtype)
    _ = rows @ weights[0]  # the workspace
    held(aten._grouped_mm.default, rows, weights, offsets)
    held(aten._grouped_mm.default, rows.t(), out, offsets)
    held(aten._grouped_mm.default, out, weights.transpose(1, 2), offsets)


def test_what_no_rule_covers_is_said():
    target, indices = empty(4, 100, 8), torch.zeros(300, dtype=torch.int64, device="cuda")
    given = (target, [None, indices], empty(4, 300, 8), True)
    with looking_up(Kernels()) as kernels:
        assert of_operator(aten.index_put.default, given, {}, target, "cuda") == 0
    assert "aten::index_put is not known (other indices than one of the first dimension)" in kernels.notes[0]


@pytest.mark.skipif(simulator.here(), reason="cuDNN works on a card alone")
@pytest.mark.parametrize("mask", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[5] <= 128], ids=str)
def test_attention_by_cudnn(shape, dropout, mask):
    """What an H100 showed is what this card takes, and what a trial on it says."""
    query, key, value = attention(*shape)
    batch, heads, _, queries, keys, _ = shape
    causal = not mask and queries == keys
    bias = torch.zeros(batch, 1, queries, keys, dtype=HALF, device="cuda").expand(-1, heads, -1, -1) if mask else None
    given = (query, key, value, bias, True, dropout, causal, False)
    try:
        out = held(aten._scaled_dot_product_cudnn_attention.default, *given, tried=True)
    except RuntimeError as problem:
        pytest.skip(f"cuDNN does not take it: {problem}")
    for gradient in (torch.empty_like(out[0]), torch.empty(query.shape, dtype=HALF, device="cuda")):
        given = (gradient, query, key, value, *out[:2], *out[6:8], bias, *out[2:6], dropout, causal)
        held(aten._scaled_dot_product_cudnn_attention_backward.default, *given, tried=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_trial_on_the_card_finds_what_the_rule_says(dropout):
    query, key, value = attention(1, 2, 2, 64, 8192, 128)
    op, given = aten._scaled_dot_product_flash_attention.default, (query, key, value, dropout, False, False)
    call = Call.of(op, given, {}, op(*given))
    before = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    assert trial.measure(call, "cuda") == cuda.flash_forward(call) > 0
    assert torch.equal(torch.cuda.get_rng_state(), before[0]) and torch.cuda.memory_allocated() == before[1]
