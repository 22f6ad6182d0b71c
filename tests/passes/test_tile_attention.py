"""Attention in shards of its queries: what the graphs look like, what they compute, and what they take."""

from __future__ import annotations

import functools
import pickle

import pytest
import torch

import memgraph
from memgraph.base import compat
from memgraph.facts.actions import Tile
from tests.support.attention import CLOSE, WIDTH, Attention, Joint, joint_of, packed, padded, squares, window
from tests.support.harness import Eager
from tests.support.interpreted import backend
from tests.support.lanes import slow_but
from tests.support.models import tiny
from tests.support.printer import golden, text
from tests.support.splits import calls
from tests.support.tiles import Of, distance, largest_error

LENGTH = 24
SHARDS = (2, 3, 5, LENGTH)  # five leave a shorter one


# --- what it looks like -----------------------------------------------------------------------------------


@functools.cache
def windowed() -> Joint:
    return joint_of(Attention(window(5)))


def test_a_tile_of_a_forward():
    tiled = windowed().tiled(2)
    assert text(tiled.tile_0) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1
        slice_tensor = aten.slice.Tensor(unsqueeze, 0, 0, 12)
        slice_tensor_1 = aten.slice.Tensor(permute_1, 2, 0, 12)
        body_0 = self.body_0
        invoke_subgraph = invoke_subgraph(body_0, 'body_0', slice_tensor, unsqueeze_1, slice_tensor_1, permute_3, \
            permute_5, full_default, full_default_1)
        getitem = invoke_subgraph[0]
        getitem_1 = invoke_subgraph[1]
        permute_default = aten.permute.default(getitem, [0, 2, 1, 3])
        shard_whole_default = memgraph.shard_whole.default(permute_default, 1, 24)
        permute_default_1 = aten.permute.default(getitem_1, [0, 2, 1])
        shard_whole_default_1 = memgraph.shard_whole.default(permute_default_1, 1, 24)
        slice_tensor_2 = aten.slice.Tensor(unsqueeze, 0, 12, 24)
        slice_tensor_3 = aten.slice.Tensor(permute_1, 2, 12, 24)
        invoke_subgraph_1 = invoke_subgraph(body_0, 'body_0', slice_tensor_2, unsqueeze_1, slice_tensor_3, \
            permute_3, permute_5, full_default, full_default_1)
        getitem_2 = invoke_subgraph_1[0]
        getitem_3 = invoke_subgraph_1[1]
        permute_default_2 = aten.permute.default(getitem_2, [0, 2, 1, 3])
        shard_put_default = memgraph.shard_put.default(shard_whole_default, permute_default_2, 1, 12)
        permute_default_3 = aten.permute.default(getitem_3, [0, 2, 1])
        shard_put_default_1 = memgraph.shard_put.default(shard_whole_default_1, permute_default_3, 1, 12)
        permute_default_4 = aten.permute.default(shard_put_default, [0, 2, 1, 3])
        permute_default_5 = aten.permute.default(shard_put_default_1, [0, 2, 1])
        outputs permute_default_4, permute_default_5
    """)
    assert text(tiled.tile_0.body_0) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1
        le = aten.le.Tensor(unsqueeze_1, unsqueeze)
        sub = aten.sub.Tensor(unsqueeze, unsqueeze_1)
        lt = aten.lt.Scalar(sub, 5)
        bitwise_and = aten.bitwise_and.Tensor(le, lt)
        where = aten.where.self(bitwise_and, full_default_1, full_default)
        _scaled_dot_product_flash_attention_for_cpu = \
            aten._scaled_dot_product_flash_attention_for_cpu.default(permute_1, permute_3, permute_5, attn_mask=where)
        getitem = _scaled_dot_product_flash_attention_for_cpu[0]
        getitem_1 = _scaled_dot_product_flash_attention_for_cpu[1]
        outputs getitem, getitem_1
    """)


def test_a_tile_of_a_backward():
    tiled = windowed().tiled(2)
    assert text(tiled.tile_1) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1, permute_12, \
            getitem, getitem_1
        slice_tensor = aten.slice.Tensor(unsqueeze, 0, 0, 12)
        slice_tensor_1 = aten.slice.Tensor(permute_1, 2, 0, 12)
        slice_tensor_2 = aten.slice.Tensor(permute_12, 2, 0, 12)
        slice_tensor_3 = aten.slice.Tensor(getitem, 2, 0, 12)
        slice_tensor_4 = aten.slice.Tensor(getitem_1, 2, 0, 12)
        body_0 = self.body_0
        invoke_subgraph = invoke_subgraph(body_0, 'body_0', slice_tensor, unsqueeze_1, slice_tensor_1, permute_3, \
            permute_5, full_default, full_default_1, slice_tensor_2, slice_tensor_3, slice_tensor_4)
        getitem_2 = invoke_subgraph[0]
        getitem_3 = invoke_subgraph[1]
        getitem_4 = invoke_subgraph[2]
        permute_default = aten.permute.default(getitem_2, [0, 2, 1, 3])
        shard_whole_default = memgraph.shard_whole.default(permute_default, 1, 24)
        slice_tensor_5 = aten.slice.Tensor(unsqueeze, 0, 12, 24)
        slice_tensor_6 = aten.slice.Tensor(permute_1, 2, 12, 24)
        slice_tensor_7 = aten.slice.Tensor(permute_12, 2, 12, 24)
        slice_tensor_8 = aten.slice.Tensor(getitem, 2, 12, 24)
        slice_tensor_9 = aten.slice.Tensor(getitem_1, 2, 12, 24)
        invoke_subgraph_1 = invoke_subgraph(body_0, 'body_0', slice_tensor_5, unsqueeze_1, slice_tensor_6, \
            permute_3, permute_5, full_default, full_default_1, slice_tensor_7, slice_tensor_8, slice_tensor_9)
        getitem_5 = invoke_subgraph_1[0]
        getitem_6 = invoke_subgraph_1[1]
        getitem_7 = invoke_subgraph_1[2]
        permute_default_1 = aten.permute.default(getitem_5, [0, 2, 1, 3])
        shard_put_default = memgraph.shard_put.default(shard_whole_default, permute_default_1, 1, 12)
        shard_sum_default = memgraph.shard_sum.default(getitem_3, getitem_6)
        shard_sum_default_1 = memgraph.shard_sum.default(getitem_4, getitem_7)
        permute_default_2 = aten.permute.default(shard_put_default, [0, 2, 1, 3])
        outputs permute_default_2, shard_sum_default, shard_sum_default_1
    """)
    assert text(tiled.tile_1.body_0) == golden("""
        inputs unsqueeze, unsqueeze_1, permute_1, permute_3, permute_5, full_default, full_default_1, permute_12, \
            getitem, getitem_1
        le = aten.le.Tensor(unsqueeze_1, unsqueeze)
        sub = aten.sub.Tensor(unsqueeze, unsqueeze_1)
        lt = aten.lt.Scalar(sub, 5)
        bitwise_and = aten.bitwise_and.Tensor(le, lt)
        where = aten.where.self(bitwise_and, full_default_1, full_default)
        _scaled_dot_product_flash_attention_for_cpu_backward = \
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default(permute_12, permute_1, permute_3, \
            permute_5, getitem, getitem_1, 0.0, False, attn_mask=where)
        getitem_2 = _scaled_dot_product_flash_attention_for_cpu_backward[0]
        getitem_3 = _scaled_dot_product_flash_attention_for_cpu_backward[1]
        getitem_4 = _scaled_dot_product_flash_attention_for_cpu_backward[2]
        outputs getitem_2, getitem_3, getitem_4
    """)


def test_no_graph_makes_the_whole_mask():
    joint = joint_of(Attention(window(5), layers=2))
    assert squares(joint.graph) and not squares(joint.tiled(2))
    first = joint.regions[:1]
    left = squares(joint.tiled(2, first))
    assert left and set(left) < set(squares(joint.graph))  # what the other layer reads


def test_a_cache_gives_tiles_back():
    """AOTAutograd's cache stores graphs by pickling them."""
    tiled = windowed().tiled(2)
    for tile in (tiled.tile_0, tiled.tile_1):
        assert text(pickle.loads(pickle.dumps(tile))) == text(tile)


def test_equal_layers_call_the_same_tile():
    tiled = joint_of(Attention(window(5), layers=3)).tiled(2)
    assert {call.args[1] for call in calls(tiled, "invoke_subgraph")} == {"tile_0", "tile_1"}


# --- what it computes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", slow_but([1, 2], fast={1}))
def test_it_computes_the_same(groups):
    joint = joint_of(Attention(window(5), layers=2, groups=groups, scale=0.3))
    assert largest_error(joint, SHARDS) < CLOSE


class Repeated(Attention):
    """Heads that share keys and values, which are repeated as transformers does it.  dtype: of the keys before that."""

    def __init__(self, mask, dtype=None, **options):
        def attend(query, key, value, mask):
            repeated = [
                item[:, :, None].expand(-1, -1, 2, -1, -1).reshape(*query.shape[:2], -1, query.shape[-1])
                for item in (key.to(dtype or key.dtype) * 2, value)
            ]
            return torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask)

        super().__init__(mask, groups=1, attend=attend, **options)


def test_heads_that_share_keys_are_summed_in_each_shard():
    joint = joint_of(Repeated(window(5), layers=2))
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    for region in joint.regions:
        shapes = [tuple(nodes[name].meta["val"].shape) for name in region.outputs if name in region.backward]
        assert shapes == [(2, 2, LENGTH, 4), *[(2, 1, 1, LENGTH, 4)] * 2]  # of queries; of keys and values, summed
    assert largest_error(joint, SHARDS) < CLOSE


@pytest.mark.parametrize("autocast", [False, True])
def test_sums_over_heads_in_bfloat16(autocast):
    """Where keys are rotated in float32, autocast has their gradient summed in it, which stays outside of the tile."""
    torch.manual_seed(0)
    dtype = torch.float32 if autocast else torch.bfloat16
    model, x = Repeated(window(40), dtype).to(dtype), torch.randn(1, 100, WIDTH, dtype=dtype)
    runner = Eager(tile={"mlp": False, "loss": False, "attention": 3})
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=runner)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = compiled(x)
    loss.backward()
    assert shards(runner.planned[-1]) == [3] and not runner.planned[-1].refusals
    (back,) = (v for v in runner.planned[-1].facts.values if v.name.startswith("tiled_") and "backward" in v.name)
    features = 4 * 100 * torch.bfloat16.itemsize  # of one head: two of queries, one of values, of keys two or one
    assert back.bytes == (5 if autocast else 4) * features


def half_empty():
    real = torch.ones(2, LENGTH, dtype=torch.int64)
    real[0, 15:] = 0
    return real


def documents():
    return (torch.arange(LENGTH) // 7).repeat(2, 1)


@pytest.mark.parametrize("mask, more", [(padded, half_empty), pytest.param(packed, documents, marks=pytest.mark.slow)])
def test_padding_and_packing(mask, more):
    assert largest_error(joint_of(Attention(mask, layers=2), more()), SHARDS) < CLOSE


def test_float32_is_exact_to_rounding():
    joint = joint_of(Attention(window(5)), length=200, dtype=torch.float32)
    assert largest_error(joint, (2, 7)) < 1e-6


def test_bfloat16_is_as_good_as_whole():
    """Against float32, in any gradient; the sums over shards are in float32."""
    torch.manual_seed(0)
    exact = joint_of(Attention(window(40)), length=200, dtype=torch.float32)
    torch.manual_seed(0)
    short = joint_of(Attention(window(40)), length=200, dtype=torch.bfloat16)
    data = tuple(item.float() if item.is_floating_point() else item for item in short.data)
    truth = Joint(exact.graph, data).run(exact.graph)
    whole, tiled = (
        distance(truth, [item.float() for item in short.run(graph)]) for graph in (short.graph, short.tiled(7))
    )
    assert 0 < tiled < 1.1 * whole


# --- models and plans -------------------------------------------------------------------------------------


def gradients(call, model, inputs):
    model.zero_grad(set_to_none=True)
    loss = call(**inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def error(want, got):
    return max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True))


def of_windows():
    torch.manual_seed(0)
    return tiny.gemma3()


def of_padding():
    model, inputs = tiny.llama()
    real = torch.ones_like(inputs["input_ids"])
    real[0, 20:] = 0
    return model, inputs | {"attention_mask": real}


def of_packing():
    model, inputs = tiny.llama()
    places = torch.cat([torch.arange(20), torch.arange(12)]).expand(2, -1)
    return model, inputs | {"position_ids": places}


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_windows, of_padding, of_packing])
def test_models_of_transformers(make):
    made, inputs = make()
    model = tiny.Loss(made).train()
    want = gradients(model, model, inputs)
    torch._dynamo.reset()
    options = {"budget": None, "tile": {"mlp": False, "loss": False, "attention": 3}}
    got = gradients(torch.compile(model, backend=backend(**options)), model, inputs)
    assert error(want, got) < 1e-6
    tiles = [d for d in memgraph.report().decisions if isinstance(d.action, Tile)]
    assert [(str(d.action), d.module.split(".")[-1]) for d in tiles] == [("tile:3", "self_attn")] * len(tiles)
    assert tiles


def planned(length: int, fraction: float | None, attention: object) -> tuple[list[torch.Tensor], object]:
    """A window of most of the sequence: without a budget such attention stays whole."""
    torch.manual_seed(0)
    model = Attention(window(3 * length // 4), layers=2)
    x = torch.randn(1, length, 8)
    runner = Eager(fraction=fraction, recompute=False, tile={"mlp": False, "loss": False, "attention": attention})
    torch._dynamo.reset()
    torch.compile(model, backend=runner)(x).backward()
    return [p.grad for p in model.parameters()], runner.planned[-1]


def shards(plan) -> list[int]:
    return [d.action.shards for d in plan.plan.decisions if isinstance(d.action, Tile)]


@pytest.mark.slow
def test_the_peak_is_lower_by_the_mask():
    want, whole = planned(1024, None, False)
    got, tiled = planned(1024, None, 8)
    assert error(want, got) < 1e-6 and shards(tiled) == [8, 8]
    mask = 1024**2 * 4
    assert whole.chosen.peak > mask > 2 * tiled.chosen.peak


@pytest.mark.slow
def test_the_planner_chooses_what_the_budget_needs():
    _, whole = planned(1024, 0.99, "auto")
    counts = []
    for fraction in (0.8, 0.5, 0.3):
        _, plan = planned(1024, fraction, "auto")
        assert plan.chosen.peak <= fraction * whole.unplanned.peak
        counts.append(shards(plan)[0])
    assert counts == sorted(counts) and counts[0] == 2 and counts[-1] > 2


def test_the_planner_leaves_short_sequences_whole():
    _, plan = planned(200, 0.3, "auto")
    assert not shards(plan)
    assert any("200 queries are too few: a shard" in refusal.reason for refusal in plan.refusals)
    _, plan = planned(200, 0.3, 4)
    assert shards(plan) == [4, 4] and not any("too few" in refusal.reason for refusal in plan.refusals)


def test_a_refusal_names_the_data_that_a_mask_is_made_of():
    """As Dynamo hands it over: its tensors were made in another fake mode than the one of the backend."""
    real = torch.ones(2, LENGTH, dtype=torch.int64)
    told = memgraph.plan(
        lambda x: Attention(padded)(x, real.to(torch.bool)),
        torch.randn(2, LENGTH, WIDTH, requires_grad=True),
        options={"budget": None, "tile": {"attention": "auto"}},
        device="cpu",
    )
    assert any("it is made of data" in refusal.reason for refusal in told.refusals)


def test_the_option_leaves_attention_whole():
    _, plan = planned(1024, 0.3, False)
    assert not shards(plan) and not any("queries" in refusal.reason for refusal in plan.refusals)


def test_a_rule_pins_one_module():
    torch.manual_seed(0)
    model = Of(lambda m, x: m.one(x) + m.other(x), one=Attention(window(5)), other=Attention(window(5)))
    runner = Eager(rules={"one": "tile:3"})
    torch._dynamo.reset()
    torch.compile(model, backend=runner)(torch.randn(1, 300, 8)).backward()
    plan = runner.planned[-1]
    (decision,) = (d for d in plan.plan.decisions if isinstance(d.action, Tile))
    assert (decision.action, decision.module) == (Tile(3), "one") and not plan.refusals


@pytest.mark.slow
def test_sequences_that_are_too_short_get_another_graph():
    """Each shard needs two queries, so a graph of eight shards takes no sequence of fifteen."""
    torch.manual_seed(0)
    model, runner = Attention(window(5)), Eager(tile={"attention": 8})
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=runner, dynamic=True)
    for length in (300, 16, 15, 4, 3, 500):
        x = torch.randn(2, length, 8)
        model.zero_grad()
        compiled(x).backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).backward()
        assert error([p.grad for p in model.parameters()], got) < 1e-6
    assert [shards(plan) for plan in runner.planned] == [[8], [7], [2], []]
    reasons = [
        refusal.reason for plan in runner.planned for refusal in plan.refusals if "shard needs" in refusal.reason
    ]
    assert reasons == [
        f"its length may be {n}, and each shard needs two queries: {n // 2} shards at most" for n in (15, 4, 3)
    ]


@pytest.mark.skipif(not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU")
@pytest.mark.parametrize("length, on_a_card", [(64, []), (100, [2]), (1000, [8])])
def test_a_plan_for_a_card_has_the_tiles_that_the_card_gets(length, on_a_card):
    """A CPU build traces the CPU's kernel; the card's, whichever it is, takes blocks of 64 queries."""
    with torch.device("meta"):
        model, x = Attention(window(40)), torch.empty(2, length, WIDTH)
    options = {"budget": None, "tile": {"attention": 10}}
    here = memgraph.plan(model, x, options=options, hardware="cpu", device="cpu")
    there = memgraph.plan(model, x, options=options, hardware="H100")
    shards = [[d.action.shards for d in report.decisions if isinstance(d.action, Tile)] for report in (here, there)]
    assert shards == [[10], on_a_card]
    assert on_a_card or any("whole blocks of 64" in refusal.reason for refusal in there.refusals)
