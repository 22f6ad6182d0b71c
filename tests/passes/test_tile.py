"""The rewrite into tiles: what the graphs look like."""

from __future__ import annotations

import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from memgraph.facts.tokens.states import Sharded
from memgraph.passes.tiles.body import rows_of, sizes
from tests.support.printer import golden, text
from tests.support.splits import calls
from tests.support.tiles import (
    WIDTH,
    Joint,
    Of,
    cross_entropy,
    floats,
    joint_of,
    labels,
    largest_error,
    layers,
    linear,
    loss,
    mlp,
)

SHARDS = (2, 3, 8)


# --- what it looks like -----------------------------------------------------------------------------------


@functools.cache
def tiny() -> Joint:
    """Four rows of two numbers, four numbers wide in between."""
    return joint_of(nn.Sequential(linear(2, 4, False), nn.ReLU(), linear(4, 2, False)), floats(4, 2))


def test_the_graph_calls_a_tile_for_the_forward_and_one_for_the_backward():
    assert text(tiny().tiled(2)) == golden("""
        inputs primals_1, primals_2, primals_3, tangents_1
        tile_0 = self.tile_0
        tiled_mm_1_forward = invoke_subgraph(tile_0, 'tile_0', primals_1, primals_2, primals_3)
        getitem = tiled_mm_1_forward[0]
        tile_1 = self.tile_1
        tiled_mm_1_backward = invoke_subgraph(tile_1, 'tile_1', primals_1, primals_2, primals_3, tangents_1)
        getitem_1 = tiled_mm_1_backward[0]
        getitem_2 = tiled_mm_1_backward[1]
        getitem_3 = tiled_mm_1_backward[2]
        outputs getitem, getitem_2, getitem_3, getitem_1
    """)


def test_a_tile_of_a_forward():
    tiled = tiny().tiled(2)
    assert text(tiled.tile_0) == golden("""
        inputs primals_1, primals_2, primals_3
        slice_tensor = aten.slice.Tensor(primals_2, 0, 0, 2)
        body_0 = self.body_0
        invoke_subgraph = invoke_subgraph(body_0, 'body_0', primals_1, slice_tensor, primals_3)
        getitem = invoke_subgraph[0]
        shard_whole_default = memgraph.shard_whole.default(getitem, 0, 4)
        slice_tensor_1 = aten.slice.Tensor(primals_2, 0, 2, 4)
        invoke_subgraph_1 = invoke_subgraph(body_0, 'body_0', primals_1, slice_tensor_1, primals_3)
        getitem_1 = invoke_subgraph_1[0]
        shard_put_default = memgraph.shard_put.default(shard_whole_default, getitem_1, 0, 2)
        outputs shard_put_default
    """)
    assert text(tiled.tile_0.body_0) == golden("""
        inputs primals_1, primals_2, primals_3
        permute = aten.permute.default(primals_1, [1, 0])
        mm = aten.mm.default(primals_2, permute)
        relu = aten.relu.default(mm)
        permute_1 = aten.permute.default(primals_3, [1, 0])
        mm_1 = aten.mm.default(relu, permute_1)
        outputs mm_1
    """)


def test_a_tile_of_a_backward():
    """The products that are summed over shards are taken by the tile, of what the body returns."""
    tiled = tiny().tiled(2)
    assert text(tiled.tile_1) == golden("""
        inputs primals_1, primals_2, primals_3, tangents_1
        slice_tensor = aten.slice.Tensor(primals_2, 0, 0, 2)
        slice_tensor_1 = aten.slice.Tensor(tangents_1, 0, 0, 2)
        body_0 = self.body_0
        invoke_subgraph = invoke_subgraph(body_0, 'body_0', primals_1, slice_tensor, primals_3, slice_tensor_1)
        getitem = invoke_subgraph[0]
        getitem_1 = invoke_subgraph[1]
        getitem_2 = invoke_subgraph[2]
        permute_default = aten.permute.default(slice_tensor_1, [1, 0])
        shard_product_default = memgraph.shard_product.default(permute_default, getitem)
        permute_default_1 = aten.permute.default(getitem_1, [1, 0])
        shard_product_default_1 = memgraph.shard_product.default(permute_default_1, slice_tensor)
        shard_whole_default = memgraph.shard_whole.default(getitem_2, 0, 4)
        slice_tensor_2 = aten.slice.Tensor(primals_2, 0, 2, 4)
        slice_tensor_3 = aten.slice.Tensor(tangents_1, 0, 2, 4)
        invoke_subgraph_1 = invoke_subgraph(body_0, 'body_0', primals_1, slice_tensor_2, primals_3, slice_tensor_3)
        getitem_3 = invoke_subgraph_1[0]
        getitem_4 = invoke_subgraph_1[1]
        getitem_5 = invoke_subgraph_1[2]
        permute_default_2 = aten.permute.default(slice_tensor_3, [1, 0])
        shard_add_default = memgraph.shard_add.default(shard_product_default, permute_default_2, getitem_3)
        permute_default_3 = aten.permute.default(getitem_4, [1, 0])
        shard_add_default_1 = memgraph.shard_add.default(shard_product_default_1, permute_default_3, slice_tensor_2)
        shard_put_default = memgraph.shard_put.default(shard_whole_default, getitem_5, 0, 2)
        outputs shard_add_default, shard_add_default_1, shard_put_default
    """)
    assert text(tiled.tile_1.body_0).endswith("outputs relu, where, mm_5")  # h, dg, dx


def test_a_tile_of_a_loss():
    """Its gradient is made in the forward with the tangent taken for 1, and multiplied by it in the backward."""
    tiny = Of(lambda m, x: m.head(x).logsumexp(-1).sum(), head=linear(2, 4, False))
    tiled = joint_of(tiny, floats(4, 2)).tiled(2)
    assert text(tiled) == golden("""
        inputs primals_1, primals_2, tangents_1
        tile_0 = self.tile_0
        tiled_add_one = aten.full.default([], 1.0, dtype=torch.float64, device=cpu)
        expand_1 = aten.expand.default(tiled_add_one, [4])
        tiled_add_forward = invoke_subgraph(tile_0, 'tile_0', primals_1, primals_2, expand_1)
        getitem = tiled_add_forward[0]
        getitem_1 = tiled_add_forward[1]
        getitem_2 = tiled_add_forward[2]
        sum_2 = aten.sum.default(getitem)
        mul_tensor = aten.mul.Tensor(getitem_1, tangents_1)
        mul_tensor_1 = aten.mul.Tensor(getitem_2, tangents_1)
        outputs sum_2, mul_tensor, mul_tensor_1
    """)
    assert " ".join(node.name for node in calls(tiled.tile_0, "memgraph")) == golden("""
        shard_whole_default shard_product_default shard_whole_default_1 \
        shard_put_default shard_add_default shard_put_default_1
    """)


@pytest.mark.parametrize(
    "returned",
    [lambda z, y: (cross_entropy(z, y), z.square().sum()), lambda z, y: cross_entropy(z, y, reduction="none")],
    ids=["two scalars", "a number a token"],
)
def test_tangents_that_are_not_one_scalar_make_a_tile_for_each_direction(returned):
    joint = joint_of(loss(returned), floats(), labels())
    (region,) = joint.regions
    names = [node.name for node in calls(joint.tiled(2), "invoke_subgraph")]
    assert names == [f"tiled_{region.outputs[0]}_forward", f"tiled_{region.outputs[0]}_backward"]


def test_equal_layers_share_their_tiles():
    joint = joint_of(layers(3, last=mlp(lambda m, h: h.sin())), floats())
    tiled = joint.tiled(2)
    forward = [node.args[1] for node in calls(tiled, "invoke_subgraph") if node.name.endswith("forward")]
    backward = [node.args[1] for node in calls(tiled, "invoke_subgraph") if node.name.endswith("backward")]
    assert len(set(forward)) == len(set(backward)) == 2
    assert len(set(forward[:3])) == 1 and len(set(backward[1:])) == 1  # the last layer's backward comes first


@pytest.mark.parametrize(
    ("shards", "bodies", "rows"),
    [(2, 1, [6, 6]), (3, 1, [4, 4, 4]), (5, 1, [3, 3, 3, 3]), (7, 1, [2] * 6), (8, 1, [2] * 6), (100, 1, [1] * 12)],
)
def test_even_shards_run_one_body(shards, bodies, rows):
    tiled = joint_twelve().tiled(shards)
    assert len(list(tiled.tile_0.children())) == bodies
    assert [run.args[3].meta["val"].numel() // WIDTH for run in calls(tiled.tile_0, "invoke_subgraph")] == rows


@functools.cache
def joint_twelve() -> Joint:
    gated = Of(lambda m, x: m.down(m.up(x).relu()), up=linear(WIDTH, 32, False), down=linear(32, WIDTH, False))
    return joint_of(gated, floats())


def test_an_uneven_last_shard_runs_a_body_of_its_own():
    joint = joint_of(mlp(), floats(7, WIDTH))
    for shards, rows in ((2, [4, 3]), (3, [3, 3, 1]), (5, [2, 2, 2, 1])):
        tiled = joint.tiled(shards)
        assert len(list(tiled.tile_0.children())) == len(list(tiled.tile_1.children())) == 2
        assert len(calls(tiled.tile_0, "invoke_subgraph")) == len(rows)
        assert joint.error(shards) < 1e-12


@given(tokens=st.integers(1, 5000), shards=st.integers(1, 70), multiple=st.sampled_from([1, 3, 32, 64]))
@example(1, 8, 1)
@example(5, 8, 32)
@example(4096, 7, 32)
def test_sizes(tokens, shards, multiple):
    found = sizes(tokens, shards, multiple)
    assert sum(found) == tokens and len(found) <= shards
    assert set(found[:-1]) <= {found[0]} and 0 < found[-1] <= found[0]
    assert not any(size % multiple for size in found[:-1])
    whole = Sharded((0,), multiple=multiple)  # filled up in each shard, it is filled up as a whole
    assert sum(rows_of(whole, size) for size in found) == rows_of(whole, tokens)


def test_a_sequence_shorter_than_the_number_of_shards():
    joint = joint_of(mlp(), floats(1, 3, WIDTH))
    assert [len(calls(joint.tiled(n).tile_0, "invoke_subgraph")) for n in (2, 3, 8)] == [2, 3, 3]
    assert largest_error(joint) < 1e-12
