"""Broken tiles of attention whose shards are given a part of the keys: one small edit of a rewritten graph each."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from memgraph.facts.masks.reach import Reach
from memgraph.passes import graphs
from memgraph.passes.tile import tile
from memgraph.verify.tiles import TileError, verify_tiles
from tests.support import tiles
from tests.support.attention import Attention, Joint, joint_of, padded, summed_in_bfloat16, window, without_a_sum
from tests.support.splits import calls

aten = torch.ops.aten
LENGTH = 128
SHARDS = 4  # of 32 queries and 48 keys


@functools.cache
def windowed(dtype: torch.dtype = torch.float32) -> Joint:
    torch.manual_seed(0)
    return joint_of(Attention(window(17)), length=LENGTH, dtype=dtype)


@functools.cache
def causal() -> Joint:
    torch.manual_seed(0)
    return joint_of(Attention(padded), torch.ones(2, LENGTH, dtype=torch.int64), length=LENGTH, dtype=torch.float32)


def refusal(edit, joint: Joint | None = None) -> str:
    return tiles.refusal(joint or windowed(), edit, SHARDS)


def moved(tile, shard: int, place: int, by: int) -> None:
    """Cut an operand of a shard's call out elsewhere.  place: among the operands of the body."""
    call = calls(tile, "invoke_subgraph")[shard]
    part = call.args[2 + place]
    source, dim, start, length = part.args
    part.args = (source, dim, start + by, length)


# Operands of a body: positions of queries, of keys, then queries, keys, values.
POSITIONS, KEYS, VALUES = 1, 3, 4


@pytest.mark.parametrize("name", ["tile_0", "tile_1"])
@pytest.mark.parametrize("place", [POSITIONS, KEYS, VALUES])
@pytest.mark.parametrize("by", [-16, 16])
def test_other_keys(name, place, by):
    """One of the three is of other keys than the others are."""

    def edit(tiled):
        moved(getattr(tiled, name), 2, place, by)

    assert "differs from the whole" in refusal(edit)


@pytest.mark.parametrize("name", ["tile_0", "tile_1"])
@pytest.mark.parametrize("by", [16, 1])
def test_keys_that_begin_too_late(name, by):
    """All three are of the same keys, and the first keys that a query reads are not among them."""

    def edit(tiled):
        for place in (POSITIONS, KEYS, VALUES):
            moved(getattr(tiled, name), 2, place, by)
        if name == "tile_1":
            for added in calls(tiled.tile_1, "memgraph.shard_sum"):
                if added.args[3] == 48:
                    added.args = (*added.args[:3], 48 + by)

    assert "differs from the whole" in refusal(edit)


@pytest.mark.parametrize("before, shards", [(16, 4), (16, 8), (0, 8)])
def test_a_reach_that_is_too_short(before, shards):
    """The tile is made as its region says; that a query reads more is seen in the joint graph alone."""
    torch.manual_seed(0)
    joint = joint_of(Attention(window(18)), length=LENGTH, dtype=torch.float32)
    (region,) = joint.regions
    assert region.reach == Reach(17, 0)
    short = dataclasses.replace(region, reach=Reach(before, 0))
    made = tile(graphs.Joint(joint.graph, 1), graphs.TilePlan((tiles.in_shards(short, shards),))).graphs.module
    with pytest.raises(TileError, match="differs from the whole"):
        verify_tiles(joint.graph, made, [(short, shards)])


def test_a_causal_mask_whose_keys_end_too_early():
    joint = causal()
    (region,) = joint.regions
    short = dataclasses.replace(region, reach=Reach(LENGTH - 1, -16))
    made = tile(graphs.Joint(joint.graph, 1), graphs.TilePlan((tiles.in_shards(short, SHARDS),))).graphs.module
    with pytest.raises(TileError, match="differs from the whole"):
        verify_tiles(joint.graph, made, [(short, SHARDS)])


@pytest.mark.parametrize("by", [-16, 16])
def test_gradients_that_are_added_elsewhere(by):
    def edit(tiled):
        added = calls(tiled.tile_1, "memgraph.shard_sum")[2]
        added.args = (*added.args[:3], added.args[3] + by)

    assert "differs from the whole" in refusal(edit)


def test_a_first_gradient_in_another_place():
    def edit(tiled):
        first = calls(tiled.tile_1, "memgraph.shard_total")[0]
        part, dim, start, length = first.args
        first.args = (part, dim, start + 16, length)

    assert "differs from the whole" in refusal(edit)


def test_a_gradient_without_a_shard():
    assert "differs from the whole" in refusal(without_a_sum)


def test_a_gradient_that_is_summed_in_bfloat16():
    assert "adds shards up in bfloat16" in refusal(summed_in_bfloat16, windowed(torch.bfloat16))


def test_positions_of_other_queries():
    def edit(tiled):
        part = calls(tiled.tile_0, "invoke_subgraph")[2].args[2]
        source, dim, start, end = part.args
        part.args = (source, dim, start - 32, end - 32)

    assert "differs from the whole" in refusal(edit)
