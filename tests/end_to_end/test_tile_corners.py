"""Corners of tiling that were wrong once: one minimal example each."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memgraph
from memgraph.facts.actions import Tile
from memgraph.runtime.tile_ops import accumulator
from tests.support.harness import Eager, gradients
from tests.support.tiles import (
    BATCH,
    LENGTH,
    WIDE,
    WIDTH,
    WORDS,
    Of,
    cross_entropy,
    floats,
    joint_of,
    labels,
    linear,
    loss,
    mlp,
)


# KeyError: getitem in tile(): the second region reads a node that the first one's rewrite has replaced
@pytest.mark.parametrize("second", [mlp(), linear(WIDTH, WORDS)], ids=["mlp", "head"])
def test_a_region_reads_what_another_made(second):
    module = Of(lambda m, x: m.b(m.a(x)).logsumexp(-1).sum(), a=mlp(), b=second)
    assert joint_of(module, floats()).error(2) < 1e-12


# both regions begin with the same spared node (permute of w), so their calls get one name
def test_two_losses_with_one_transposed_weight():
    def forward(m, x, y):
        weight = m.weight.t()
        return cross_entropy(x @ weight, y) + cross_entropy(x.sin() @ weight, y)

    module = Of(forward, weight=nn.Parameter(torch.randn(WORDS, WIDTH)))
    assert joint_of(module, floats(), labels()).error(2) < 1e-12


# wrong gradients, unnoticed: what lies between the tangent and the region is not linear
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.25, 0.25)


def test_a_clipped_gradient():
    joint = joint_of(loss(lambda z, y: Clipped.apply(cross_entropy(z, y))), floats(), labels())
    assert joint.error(2) < 1e-12


# flip comes as prims.rev, and any prims:: operator is taken for pointwise
def test_flip_is_refused_by_name():
    joint = joint_of(mlp(lambda m, h: h.flip(1).relu()), floats())
    assert joint.regions == () and [refused.module for refused in joint.refused] == ["up"]


# refused since inf - inf and nan - nan are nan on the verifier's random data
def test_words_that_may_not_be_said():
    mask = nn.Buffer(torch.arange(WORDS) > 15)
    module = Of(
        lambda m, x, y: cross_entropy(m.head(x).masked_fill(m.mask, float("-inf")), y),
        head=linear(WIDTH, WORDS, False), mask=mask,
    )  # fmt: skip
    assert joint_of(module, floats(), labels(16)).error(2) < 1e-12


def test_probabilities_of_a_teacher():
    module = loss(lambda z, teacher: F.kl_div(z.log_softmax(-1), teacher, reduction="sum"))
    teacher = floats(BATCH, LENGTH, WORDS).detach().softmax(-1)
    assert joint_of(module, floats(), teacher).error(2) < 1e-12


# whole numbers are summed over shards in float32: (h > 0).sum() above 2**24 is off
def test_whole_numbers_stay_whole():
    assert accumulator(torch.int64) == torch.int64


# the product of two weights is taken for a region's first operator and spoils the MLP that reads it
def test_merged_adapters():
    parts = {"a": nn.Parameter(torch.randn(2, WIDTH)), "b": nn.Parameter(torch.randn(WIDE, 2))}
    module = mlp(**parts)
    module.function = lambda m, x: m.down(F.silu(F.linear(x, m.up.weight + m.b @ m.a, m.up.bias)))
    joint = joint_of(module, floats())
    assert [region.kind for region in joint.regions] == ["mlp"]


# grouped keys and values, repeated for attention, are refused with a reason that a user cannot use
def test_repeated_keys_are_no_refusal():
    def forward(m, x):
        q = m.q(x).unflatten(-1, (4, -1)).transpose(1, 2)
        k = m.k(x).unflatten(-1, (2, -1)).transpose(1, 2)[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)
        return m.o(F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2))

    parts = {"q": linear(WIDTH, WIDTH), "k": linear(WIDTH, WIDTH // 2), "o": linear(WIDTH, WIDTH)}
    assert joint_of(Of(forward, **parts), floats()).refused == ()


# VerifyError out of memgraph.plan, which works without tiles: the backward's tile reads a buffer that the forward
# overwrites
@pytest.mark.parametrize("copied", [False, True])
def test_a_buffer_that_the_step_overwrites(copied):
    """A tile may not read it again in the backward; a copy of it that was made before it may.

    Inductor drops such a copy on 2.11 and 2.13, and keeps it on 2.15.
    """

    def forward(m, x):
        shift = m.shift.clone() if copied else m.shift
        h = (m.up(x) + shift).sin()
        m.shift.add_(1)
        return m.down(h).square().mean()

    def module():
        torch.manual_seed(0)
        made = mlp(shift=nn.Buffer(torch.ones(WIDE)))
        made.function = forward
        return made

    x = torch.randn(2, 6, WIDTH)
    options = {"budget": None, "tile": {"mlp": 2}}
    report = memgraph.plan(module(), x, options=options)
    refused = any("overwrite" in refusal.reason for refusal in report.refusals)
    tiled = any(isinstance(decision.action, Tile) for decision in report.decisions)
    assert refused != tiled
    assert refused or copied
    want = gradients(module(), "eager", x)
    found = gradients(module(), Eager(**options), x)
    for mine, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(mine, theirs)


# the report says 7 shards, the tile runs 6 (ceil(12 / 7) = 2 tokens each)
def test_the_report_says_how_many_shards_run():
    options = {"budget": None, "tile": {"mlp": 7}}
    report = memgraph.plan(mlp(), torch.randn(2, 6, WIDTH), options=options)
    assert [decision.action.shards for decision in report.decisions if isinstance(decision.action, Tile)] == [6]


class Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


# the same within the region: on the verifier's small data the bound is never reached, under a scaled loss it is
def test_a_clipped_gradient_of_the_logits_under_a_scaled_loss():
    joint = joint_of(loss(lambda z, y: cross_entropy(Bounded.apply(z), y, reduction="sum")), floats(), labels())
    scaled = dataclasses.replace(joint, data=(*joint.data[:-1], torch.tensor(65536.0, dtype=torch.float64)))
    assert scaled.error(2) < 1e-12


# the same between the region's forward and its backward, which the region may take in
def test_a_clipped_gradient_of_what_each_token_loses_under_a_scaled_loss():
    def squared(z, y):
        return Bounded.apply(cross_entropy(z, y, reduction="none")).square().sum()

    joint = joint_of(loss(squared), floats(), labels())
    scaled = dataclasses.replace(joint, data=(*joint.data[:-1], torch.tensor(65536.0, dtype=torch.float64)))
    assert joint.regions[0].tangent == "" and scaled.error(2) < 1e-12


# arange(5, 17) was taken for the numbers of the tokens
def test_rows_that_are_not_counted_from_0():
    def shifted(z, y):
        z = torch.cat([z.flatten(0, 1)] * 2).log_softmax(-1)
        return -z[torch.arange(5, 17), y.flatten()].mean()

    joint = joint_of(loss(shifted), floats(), labels())
    assert joint.regions == () and joint.refused


# the numbers of positions were made anew in each shard, from 0; the trial noticed and refused the tile
def test_numbers_of_positions_in_narrow_rows():
    module = mlp(lambda m, h: h.sin() * torch.arange(7)[None, :, None])
    assert joint_of(module, floats(1, 7, WIDTH)).error(2) < 1e-12


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, way):
        ctx.way = way
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.way == "division":
            return gradient.div(0.01, rounding_mode="floor") * 0.01, None
        return (gradient * 100).to(torch.int64).to(gradient.dtype) / 100, None


@pytest.mark.parametrize("way", ["division", "whole numbers"])
def test_a_rounded_gradient_is_not_scaled(way):
    joint = joint_of(loss(lambda z, y: cross_entropy(Rounded.apply(z, way), y)), floats(), labels())
    assert all(region.tangent == "" for region in joint.regions) and joint.error(2) < 1e-12
