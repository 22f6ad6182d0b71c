"""Broken tiles are caught: one small edit of a rewritten graph each."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.base.errors import VerifyError
from memgraph.facts.tokens.kinds import SIZED
from memgraph.facts.tokens.states import MixesTokens
from memgraph.passes.insert import call
from memgraph.passes.tile import call_names
from memgraph.passes.tiles import body as bodies
from memgraph.verify.tiles import TileError, verify_tiles
from tests.support import tiles
from tests.support.splits import after, calls, output, set_outputs
from tests.support.tiles import WIDTH, WORDS, Joint, Of, floats, joint_of, labels, linear, loss, mlp

aten = torch.ops.aten


@functools.cache
def gated() -> Joint:
    parts = {"gate": linear(WIDTH, 32, False), "up": linear(WIDTH, 32, False), "down": linear(32, WIDTH, False)}
    return joint_of(Of(lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)), **parts), floats())


@functools.cache
def uneven() -> Joint:
    return joint_of(mlp(lambda m, h: h * h.sigmoid()), floats(7, WIDTH))


@functools.cache
def head() -> Joint:
    return joint_of(loss(), floats(), labels())


@functools.cache
def layers() -> Joint:
    """Two equal ones, and one that applies another function."""
    norms = [nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(3)]
    parts = {"a": mlp(), "b": mlp(), "c": mlp(lambda m, h: h.relu().relu() + h), "norms": nn.ModuleList(norms)}

    def forward(m, x):
        for norm, layer in zip(m.norms, (m.a, m.b, m.c), strict=True):
            x = x + layer(norm(x))
        return x

    return joint_of(Of(forward, **parts), floats())


def refusal(joint: Joint, edit, shards: int = 2) -> str:
    return tiles.refusal(joint, edit, shards, (VerifyError, TileError))


def tile_call(tiled, side: str = "forward", place: int = 0):
    return [node for node in calls(tiled, "invoke_subgraph") if node.name.endswith(side)][place]


def swap(node, one: int, other: int) -> None:
    args = list(node.args)
    args[one], args[other] = args[other], args[one]
    node.args = tuple(args)


def getitems(call):
    return sorted(call.users, key=lambda user: user.args[1])


# --- around the tiles -------------------------------------------------------------------------------------


def test_two_operands_change_places():
    """A weight and the tokens."""
    message = refusal(gated(), lambda tiled: swap(tile_call(tiled), 2, 3))
    assert "of its tile is float64[32, 8]" in message


def test_two_operands_of_one_shape_change_places():
    message = refusal(gated(), lambda tiled: swap(tile_call(tiled), 2, 4))
    assert "in shards differs from the whole" in message


def test_an_operand_that_the_region_does_not_read():
    def edit(tiled):
        call = tile_call(tiled)
        call.args = (*call.args[:2], after(call.args[2], aten.sin.default, call.args[2]), *call.args[3:])

    assert "which is nothing that its region reads" in refusal(gated(), edit)


def test_operands_of_the_backward_change_places():
    message = refusal(gated(), lambda tiled: swap(tile_call(tiled, "backward"), 2, 3))
    assert "of its tile is float64[32, 8]" in message


def test_two_results_change_places():
    """The gradients of two weights of one shape."""

    def edit(tiled):
        one, other = getitems(tile_call(tiled, "backward"))[1:3]
        one.args, other.args = other.args, one.args

    assert "in place of" in refusal(gated(), edit)


def test_an_earlier_layers_result_is_read():
    def edit(tiled):
        (one,), (other,) = (tile_call(tiled, place=place).users for place in (0, 1))
        (reader,) = other.users
        reader.replace_input_with(other, one)

    assert "in place of" in refusal(layers(), edit)


def test_what_a_tile_does_not_make_is_changed():
    def edit(tiled):
        next(node for node in calls(tiled, "aten.add")).target = aten.sub.Tensor

    assert refusal(layers(), edit)


def test_no_tile_is_called():
    joint = gated()
    with pytest.raises((VerifyError, TileError)):
        verify_tiles(joint.graph, joint.graph, [(region, 2) for region in joint.regions])


# --- the tangent ------------------------------------------------------------------------------------------


def test_the_tangent_is_not_taken_for_one():
    def edit(tiled):
        one = next(node for node in tiled.graph.nodes if node.name.endswith("_one"))
        one.args = ([], 2.0)

    assert "the tangent of its tile is not 1" in refusal(head(), edit)


def test_the_tangent_itself_is_given():
    def edit(tiled):
        one = next(node for node in tiled.graph.nodes if node.name.endswith("_one"))
        (tangent,) = (node for node in tiled.graph.find_nodes(op="placeholder") if "tangent" in node.name)
        one.replace_all_uses_with(tangent)

    assert "is given" in refusal(head(), edit)


def scaled(tiled):
    """What the backward multiplies by the tangent."""
    (tangent,) = (node for node in tiled.graph.find_nodes(op="placeholder") if "tangent" in node.name)
    return [node for node in tangent.users if node.args[0].target is operator.getitem]


def test_the_multiplication_by_the_tangent_is_missing():
    def edit(tiled):
        node = scaled(tiled)[0]
        node.replace_all_uses_with(node.args[0])

    assert "in place of" in refusal(head(), edit)


@pytest.mark.parametrize("operation", [aten.add.Tensor, aten.div.Tensor])
def test_something_else_is_done_with_the_tangent(operation):
    def edit(tiled):
        scaled(tiled)[0].target = operation

    assert "in place of" in refusal(head(), edit)


def test_the_tangent_is_multiplied_twice():
    def edit(tiled):
        node = scaled(tiled)[0]
        again = after(node, aten.mul.Tensor, node, node.args[1])
        node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)

    assert refusal(head(), edit)


# --- inside a tile ----------------------------------------------------------------------------------------


def test_wrong_bounds():
    def edit(tiled):
        part = calls(tiled.tile_0, "aten.slice")[1]
        part.args = (part.args[0], 0, 0, 6)

    assert "in shards differs from the whole" in refusal(gated(), edit)


def test_a_shard_is_added_twice():
    def edit(tiled):
        graph = tiled.tile_1
        node = calls(graph, "memgraph.shard_add")[0]
        again = after(node, node.target, node, *node.args[1:])
        node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)

    assert "in shards differs from the whole" in refusal(gated(), edit)


def test_a_shard_is_left_out():
    def edit(tiled):
        node = calls(tiled.tile_0, "memgraph.shard_put")[-1]
        node.replace_all_uses_with(node.args[0])
        tiled.tile_0.graph.erase_node(node)

    assert "in shards differs from the whole" in refusal(gated(), edit, shards=3)


def test_two_shards_change_places():
    def edit(tiled):
        first, second = calls(tiled.tile_0, "memgraph.shard_put")
        first.args, second.args = (*first.args[:3], second.args[3]), (*second.args[:3], first.args[3])

    assert "in shards differs from the whole" in refusal(gated(), edit, shards=3)


def test_a_body_does_something_else():
    def edit(tiled):
        next(node for node in calls(tiled.tile_0.body_0, "aten.mul")).target = aten.add.Tensor

    assert "in shards differs from the whole" in refusal(gated(), edit)


def test_a_body_uses_another_number():
    def edit(tiled):
        node = next(node for node in calls(tiled.tile_0.body_0, "aten.add") if node.args[1] == 1)
        node.args = (node.args[0], 2)

    assert "in shards differs from the whole" in refusal(gated(), edit)


def test_the_shorter_shard_runs_a_body_that_does_something_else():
    def edit(tiled):
        next(node for node in calls(tiled.tile_0.body_1, "aten.mul")).target = aten.add.Tensor

    assert "in shards differs from the whole" in refusal(uneven(), edit)


def layer_calls(joint: Joint, tiled):
    """For each layer, the calls of its tiles."""
    nodes = {node.name: node for node in tiled.graph.nodes}
    return [[nodes[name] for name in call_names(region)] for region in joint.regions]


def test_the_last_layer_calls_the_tile_of_the_first():
    """Its inputs and outputs look the same."""

    def edit(tiled):
        first, _, last = layer_calls(layers(), tiled)
        last[0].args[0].target = first[0].args[0].target

    assert "calls tile_0 by the name of tile_2" in refusal(layers(), edit)


def test_an_equal_layer_calls_another_tile_by_the_same_name():
    """The name stands for a tile that was looked at; what is called is another."""

    def edit(tiled):
        _, second, last = layer_calls(layers(), tiled)
        second[0].args[0].target = last[0].args[0].target

    assert "calls tile_2 by the name of tile_0" in refusal(layers(), edit)


def test_the_last_layer_calls_both_tiles_of_the_first():
    """Both tiles were looked at for the first layer, but not whether they are those of the last."""

    def edit(tiled):
        first, _, last = layer_calls(layers(), tiled)
        for one, other in zip(first, last, strict=True):
            other.args[0].target = one.args[0].target
            other.args = (other.args[0], one.args[1], *other.args[2:])

    assert "in shards differs from the whole" in refusal(layers(), edit)


def test_a_result_is_returned_in_place_of_another():
    def edit(tiled):
        outputs = list(output(tiled).args[0])
        outputs[-1] = outputs[-2]
        set_outputs(tiled, outputs)

    assert refusal(gated(), edit)


# --- the trial --------------------------------------------------------------------------------------------


def test_what_was_tried_is_not_tried_again():
    """Equal tiles of equal layers are one."""
    joint, tried = layers(), set()
    for shards, count in ((2, 4), (3, 8), (2, 8)):  # two kinds of layers, the forward and the backward of each
        verify_tiles(joint.graph, joint.tiled(shards), [(region, shards) for region in joint.regions], tried)
        assert len(tried) == count


# --- rules that are wrong ---------------------------------------------------------------------------------


def test_shares_of_a_mean_that_are_means_themselves(monkeypatch):
    joint = joint_of(loss(F.mse_loss), floats(), floats(2, 6, WORDS).detach())
    monkeypatch.setattr(bodies, "_share", lambda graph, mode, node, args, kwargs: call(graph, mode, node.target, *args))
    tiled = joint.tiled(2)
    with pytest.raises(TileError, match="mean in shards differs from the whole"):
        verify_tiles(joint.graph, tiled, [(region, 2) for region in joint.regions])


def test_an_operator_that_keeps_the_size_of_the_whole(monkeypatch):
    joint = joint_of(mlp(), floats())
    monkeypatch.delitem(SIZED, "aten::view")
    with pytest.raises(MixesTokens, match="view does not run on 6 of 12 tokens"):
        joint.tiled(2)


def test_data_that_an_operator_does_not_take():
    """Positions in the trial are 0 and 1, and here there is one row: a refusal, no crash."""
    table = nn.Parameter(torch.ones(1, 32))
    module = Of(lambda m, x, ids: m.down(m.up(x).relu() * F.embedding(ids, m.table)), **mlp()._modules, table=table)
    joint = joint_of(module, floats(), labels(1))
    with pytest.raises(TileError, match="does not run on small data: embedding fails: index out of range"):
        joint.error(2)
