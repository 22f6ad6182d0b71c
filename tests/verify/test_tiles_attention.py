"""Broken tiles of attention are caught: one small edit of a rewritten graph each."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.support import tiles
from tests.support.attention import Attention, Joint, joint_of, packed, summed_in_bfloat16, window, without_a_sum
from tests.support.splits import calls

aten = torch.ops.aten
LENGTH = 48


@functools.cache
def windowed(dtype: torch.dtype = torch.float32) -> Joint:
    """A window that is longer than the numbers 0 and 1 can tell apart."""
    return joint_of(Attention(window(30)), length=LENGTH, dtype=dtype)


@functools.cache
def of_documents() -> Joint:
    documents = (torch.arange(LENGTH) // 7).repeat(2, 1)
    return joint_of(Attention(packed), documents, length=LENGTH, dtype=torch.float32)


def refusal(edit, joint: Joint | None = None) -> str:
    return tiles.refusal(joint or windowed(), edit, 3)


def made_for(body, name: str):
    return next(node for node in body.graph.nodes if name in str(node.target))


def forwards(tiled):
    """The tile, and the body of its last shard: the first ones have queries that read fewer keys."""
    return tiled.tile_0, list(tiled.tile_0.children())[-1]


def backwards(tiled):
    return tiled.tile_1, list(tiled.tile_1.children())[-1]


@pytest.mark.slow
@pytest.mark.parametrize("side", [forwards, backwards])
def test_a_window_that_is_one_longer(side):
    def edit(tiled):
        bound = made_for(side(tiled)[1], "aten.lt")
        bound.args = (bound.args[0], 31)

    assert "differs from the whole" in refusal(edit)


@pytest.mark.parametrize("side", [forwards, backwards])
def test_a_condition_that_is_left_out(side):
    def edit(tiled):
        both = made_for(side(tiled)[1], "bitwise_and")
        both.replace_all_uses_with(both.args[0])

    assert "differs from the whole" in refusal(edit)


@pytest.mark.parametrize("side", [forwards, backwards])
def test_a_condition_of_packing_that_is_left_out(side):
    def edit(tiled):
        same = made_for(side(tiled)[1], "aten.eq")
        same.target = aten.ge.Tensor

    assert "differs from the whole" in refusal(edit, of_documents())


@pytest.mark.parametrize("side", [forwards, backwards])
def test_attention_without_the_mask(side):
    def edit(tiled):
        attention = made_for(side(tiled)[1], "attention")
        attention.kwargs = {**attention.kwargs, "attn_mask": None}

    assert "differs from the whole" in refusal(edit)


@pytest.mark.parametrize("side", [forwards, backwards])
def test_positions_of_another_shard(side):
    """The second shard has the mask of the first."""

    def edit(tiled):
        first, second, _ = calls(side(tiled)[0], "invoke_subgraph")
        second.args = (*second.args[:2], first.args[2], *second.args[3:])

    assert "differs from the whole" in refusal(edit)


def test_a_shard_in_the_place_of_another():
    def edit(tiled):
        put = [node for node in tiled.tile_0.graph.nodes if "shard_put" in str(node.target)]
        put[0].args = (*put[0].args[:3], put[2].args[3])

    assert "differs from the whole" in refusal(edit) or "is not a number" in refusal(edit)


def test_a_gradient_of_keys_without_a_shard():
    assert "differs from the whole" in refusal(without_a_sum)


def test_a_gradient_that_is_summed_in_bfloat16():
    assert "adds shards up in bfloat16" in refusal(summed_in_bfloat16, windowed(torch.bfloat16))


def test_a_sum_into_a_value_that_is_read_elsewhere():
    def edit(tiled):
        first, second, *_ = calls(tiled.tile_1, "memgraph.shard_sum")
        second.args = (first.args[0], second.args[1])

    assert "which is read elsewhere" in refusal(edit)
