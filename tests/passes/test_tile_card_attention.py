"""Attention by a card's kernels in shards of its queries: what the graphs look like, and what they compute.

The kernels are called on the CPU, where another one stands behind them (`tests/support/card_kernels.py`).
"""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import AttentionInterface

import memgraph
from memgraph.base import compat
from memgraph.facts.actions import Tile
from memgraph.facts.operators import lies_on_the_host
from memgraph.facts.tokens.attention import find_attention
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, Sharded
from tests.support import card_kernels
from tests.support.attention import Attention, Joint, joint_of, packed, padded, squares, window
from tests.support.attention import alibi as by_distance
from tests.support.card_kernels import cudnn, efficient
from tests.support.harness import Eager
from tests.support.interpreted import backend
from tests.support.lanes import slow_but
from tests.support.models import tiny
from tests.support.printer import golden, text
from tests.support.splits import calls
from tests.support.tiles import largest_error

LENGTH = 100  # three blocks of 32 queries, and four more
KERNELS = {"efficient": efficient, "cudnn": cudnn}


@pytest.fixture(autouse=True)
def kernels():
    with card_kernels.on_the_cpu():
        yield


def joint(mask, *more: torch.Tensor, by=efficient, length: int = LENGTH, layers: int = 1, **options) -> Joint:
    made = Attention(mask, layers=layers, attend=by, **options)
    return joint_of(made, *more, length=length, dtype=torch.float32)


@functools.cache
def windowed(name: str = "efficient") -> Joint:
    torch.manual_seed(0)
    return joint(window(40), by=KERNELS[name])


# --- what it looks like -----------------------------------------------------------------------------------


def test_sums_are_filled_up_and_seeds_are_the_same_for_all():
    (region,) = windowed().regions
    assert (region.kind, region.tokens, region.multiple) == ("attention", LENGTH, 32) and not windowed().refused
    found = [region.states[name] for name in region.outputs]
    blocks = Sharded((2,), multiple=32)
    assert found == [Sharded((2,)), blocks, REPLICATED, REPLICATED, Sharded((2,)), PARTIAL, PARTIAL]
    assert region.handed == region.outputs[:4]


def test_a_tile_of_a_forward():
    assert text(windowed().tiled(2).tile_0) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1
        slice_tensor = aten.slice.Tensor(unsqueeze, 0, 0, 64)
        slice_tensor_1 = aten.slice.Tensor(permute_1, 2, 0, 64)
        body_0 = self.body_0
        invoke_subgraph = invoke_subgraph(body_0, 'body_0', slice_tensor, unsqueeze_1, slice_tensor_1, permute_3, \
            permute_5, full_default, full_default_1)
        getitem = invoke_subgraph[0]
        getitem_1 = invoke_subgraph[1]
        getitem_2 = invoke_subgraph[2]
        getitem_3 = invoke_subgraph[3]
        permute_default = aten.permute.default(getitem, [0, 2, 1, 3])
        shard_whole_default = memgraph.shard_whole.default(permute_default, 1, 100)
        shard_whole_default_1 = memgraph.shard_whole.default(getitem_1, 2, 128)
        slice_tensor_2 = aten.slice.Tensor(unsqueeze, 0, 64, 100)
        slice_tensor_3 = aten.slice.Tensor(permute_1, 2, 64, 100)
        body_1 = self.body_1
        invoke_subgraph_1 = invoke_subgraph(body_1, 'body_1', slice_tensor_2, unsqueeze_1, slice_tensor_3, permute_3, \
            permute_5, full_default, full_default_1)
        getitem_4 = invoke_subgraph_1[0]
        getitem_5 = invoke_subgraph_1[1]
        getitem_6 = invoke_subgraph_1[2]
        getitem_7 = invoke_subgraph_1[3]
        permute_default_1 = aten.permute.default(getitem_4, [0, 2, 1, 3])
        shard_put_default = memgraph.shard_put.default(shard_whole_default, permute_default_1, 1, 64)
        shard_put_default_1 = memgraph.shard_put.default(shard_whole_default_1, getitem_5, 2, 64)
        permute_default_2 = aten.permute.default(shard_put_default, [0, 2, 1, 3])
        outputs permute_default_2, shard_put_default_1, getitem_2, getitem_3
    """)


def test_a_body_of_a_backward():
    assert text(windowed("cudnn").tiled(2).tile_1.body_1) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1, permute_12, \
            getitem, getitem_1, getitem_6, getitem_7
        le = aten.le.Tensor(unsqueeze_1, unsqueeze)
        sub = aten.sub.Tensor(unsqueeze, unsqueeze_1)
        lt = aten.lt.Scalar(sub, 40)
        bitwise_and = aten.bitwise_and.Tensor(le, lt)
        where = aten.where.self(bitwise_and, full_default_1, full_default)
        constant_pad_nd = aten.constant_pad_nd.default(where, [0, 4], 0.0)
        slice_1 = aten.slice.Tensor(constant_pad_nd, 1, 0, 100)
        expand = aten.expand.default(slice_1, [2, 2, 36, 100])
        _scaled_dot_product_cudnn_attention_backward = \
            aten._scaled_dot_product_cudnn_attention_backward.default(permute_12, permute_1, permute_3, permute_5, \
            getitem, getitem_1, getitem_6, getitem_7, expand, None, None, 36, 100, 0.0, False)
        getitem_9 = _scaled_dot_product_cudnn_attention_backward[0]
        getitem_10 = _scaled_dot_product_cudnn_attention_backward[1]
        getitem_11 = _scaled_dot_product_cudnn_attention_backward[2]
        outputs getitem_9, getitem_10, getitem_11
    """)


@pytest.mark.parametrize("name, rows", [("efficient", [32, 32, 32, 4]), ("cudnn", [64, 36])])
def test_each_shard_begins_with_a_block(name, rows):
    tiled = windowed(name).tiled(50).tile_1
    assert [call.args[2].meta["val"].shape[0] for call in calls(tiled, "invoke_subgraph")] == rows


def test_seeds_lie_on_the_host_behind_a_tile_too():
    tiled = windowed().tiled(2)
    (forward,) = (call for call in calls(tiled, "invoke_subgraph") if "forward" in call.name)
    parts = sorted(forward.users, key=lambda part: part.args[1])
    assert [lies_on_the_host(part) for part in parts] == [False, False, True, True]


def test_no_graph_makes_the_whole_mask():
    two = joint(window(40), layers=2, length=96)
    assert squares(two.graph, 96) and not squares(two.tiled(3), 96)


# --- what it computes -------------------------------------------------------------------------------------


def half_empty() -> torch.Tensor:
    real = torch.ones(2, LENGTH, dtype=torch.int64)
    real[0, 60:] = 0
    return real


MASKS = {
    "a window": (window(40), ()),
    "padding": (padded, (half_empty(),)),
    "packing": (packed, ((torch.arange(LENGTH) // 27).repeat(2, 1),)),
    "a bias by distance": (by_distance, ()),
}


@pytest.mark.parametrize("mask", slow_but(MASKS, fast={"a window", "padding"}))
@pytest.mark.parametrize("name", KERNELS)
def test_it_computes_the_same(name, mask):
    make, more = MASKS[mask]
    assert largest_error(joint(make, *more, by=KERNELS[name], layers=2, scale=0.3), (2, 4)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("length", [33, 96, 97, 1024])
@pytest.mark.parametrize("name", KERNELS)
def test_lengths_of_whole_blocks_and_others(name, length):
    found = joint(window(40), by=KERNELS[name], length=length)
    assert len(found.regions) == 1 and largest_error(found, (2, 3)) < 2e-6


def test_a_long_sequence_is_tried_on_a_short_one():
    """The trial of 5,000 queries x keys would take 100 MB for a mask alone."""
    found = joint(window(1000), length=5000)
    found.tiled(4)
    torch.manual_seed(0)
    runner = Eager(tile={"mlp": False, "loss": False, "attention": 4})
    torch._dynamo.reset()
    model = Attention(window(1000), attend=efficient)
    torch.compile(model, backend=runner)(torch.randn(1, 5000, 8)).backward()
    (plan,) = runner.planned
    assert [d.action for d in plan.plan.decisions if isinstance(d.action, Tile)] == [Tile(4)] and not plan.refusals


def gradients(call, model, inputs):
    model.zero_grad(set_to_none=True)
    loss = call(**inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def by_card(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """Attention as transformers calls it."""
    keys, values = (item.repeat_interleave(query.shape[1] // item.shape[1], 1) for item in (key, value))
    mask = attention_mask
    if mask is None:
        places = torch.arange(query.shape[2])
        mask = (places[None, :] <= places[:, None])[None, None]
    return efficient(query, keys, values, mask, scaling).transpose(1, 2), None


@pytest.mark.slow
def test_windows_of_a_model_of_transformers():
    AttentionInterface.register("card_kernels", by_card)
    torch.manual_seed(0)
    made, inputs = tiny.gemma3()
    made.config._attn_implementation = "card_kernels"
    model, inputs = tiny.Loss(made).train(), {name: item.repeat(1, 3) for name, item in inputs.items()}
    want = gradients(model, model, inputs)
    torch._dynamo.reset()
    options = {"budget": None, "tile": {"mlp": False, "loss": False, "attention": 2}}
    got = gradients(torch.compile(model, backend=backend(**options)), model, inputs)
    assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 1e-6
    tiles = [d for d in memgraph.report().decisions if isinstance(d.action, Tile)]
    assert tiles and {d.module.split(".")[-1] for d in tiles} == {"self_attn"}


# --- what is refused --------------------------------------------------------------------------------------


def test_a_mask_that_is_learned():
    class Learned(Attention):
        def __init__(self):
            super().__init__(lambda x: self.bias + torch.zeros(1, 1, LENGTH, LENGTH), attend=efficient)
            self.bias = torch.nn.Parameter(torch.zeros(1, 1, LENGTH, 1))

    (refused,) = joint_of(Learned(), length=LENGTH, dtype=torch.float32).refused
    assert "gives a gradient of its mask" in refused.reason


def test_dropout_within_attention():
    copy = compat.copy_graph(windowed().graph)
    for node in (node for node in copy.graph.nodes if "efficient_attention" in str(node.target)):
        place = 9 if "backward" in str(node.target) else 5
        node.args = (*node.args[:place], 0.1, *node.args[place + 1 :])
    (refused,) = Joint(copy, windowed().data).refused
    assert "which ones depends on their place" in refused.reason


def test_a_sequence_of_one_block():
    runner = Eager(tile={"mlp": False, "loss": False, "attention": 2})
    torch._dynamo.reset()
    torch.compile(Attention(window(5), attend=efficient), backend=runner)(torch.randn(2, 30, 8)).backward()
    (plan,) = runner.planned
    assert not [d for d in plan.plan.decisions if isinstance(d.action, Tile)]
    assert [r.reason for r in plan.refusals] == ["each shard has whole blocks of 32 queries, and all 30 are one block"]


@pytest.mark.parametrize("attend", [efficient, cudnn])
@pytest.mark.parametrize("mask", [window(40), padded])
def test_a_length_that_is_a_symbol(attend, mask):
    """All shards but the last have whole blocks, at any length; one that is too short for them gets another graph.

    Whether rows of a mask are padded to 8 entries is a guard of torch's: lengths have two graphs.
    """
    torch.manual_seed(0)
    runner = Eager(tile={"mlp": False, "loss": False, "attention": 3})
    torch._dynamo.reset()
    model = Attention(mask, attend=attend)
    compiled = torch.compile(model, backend=runner, dynamic=True)
    for length in (400, 401, 1000, 255, 192, 100):
        x = torch.randn(2, length, 8)
        real = (torch.arange(length) < torch.tensor([[length], [length // 2]])).long()
        given = (x, real) if mask is padded else (x,)
        want, got = (gradients(functools.partial(f, *given), model, {}) for f in (model, compiled))
        assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 2e-6, length
    found = [[d.action for d in p.plan.decisions if isinstance(d.action, Tile)] for p in runner.planned]
    assert found == [[Tile(3)], [Tile(3)], *([[]] if attend is cudnn else [])]  # 100 tokens are not three blocks of 64
    assert not [refusal for plan in runner.planned[:2] for refusal in plan.refusals]
    keys = "145 or 273 or 401" if mask is padded else 273 if attend is cudnn else 209
    given = [d.why.partition("; ")[2] for d in runner.planned[1].plan.decisions if isinstance(d.action, Tile)]
    assert given == [f"each shard is given {keys} of 401 keys"]
    reasons = [refusal.reason for plan in runner.planned[2:] for refusal in plan.refusals]
    assert (
        reasons
        == ["its length may be 100, and each shard needs a block of 64 queries: 1 shards at most"][: attend is cudnn]
    )


def test_a_batch_that_is_a_symbol():
    """Its length is a number, and so is that of each shard."""
    torch.manual_seed(0)
    model, runner = Attention(window(40), attend=efficient), Eager(tile={"mlp": False, "loss": False, "attention": 8})
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=runner)
    for batch in (3, 5):
        x = torch.randn(batch, LENGTH, 8)
        torch._dynamo.mark_dynamic(x, 0)
        want = gradients(model, model, {"x": x})
        got = gradients(compiled, model, {"x": x})
        assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 1e-6
    (plan,) = runner.planned
    assert [d.action for d in plan.plan.decisions if isinstance(d.action, Tile)] == [Tile(4)] and not plan.refusals


def test_the_kernel_of_the_cpu_in_a_graph_for_a_card():
    graph = joint_of(Attention(window(5))).graph
    found = [find_attention(graph, device=device)[0][0].multiple for device in ("cpu", "cuda")]
    assert found == [1, 64]
    assert find_attention(windowed().graph, device="cuda")[0][0].multiple == 32
