"""What stops a stretch of a joint graph from being one token's own, and what is no region."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.facts.tokens.states import Sharded
from tests.support.lanes import slow_but
from tests.support.tiles import (
    BATCH,
    LENGTH,
    WIDE,
    WIDTH,
    Of,
    floats,
    joint_of,
    labels,
    linear,
    loss,
    mlp,
)

TOKENS = BATCH * LENGTH
HEADS = 4


# --- what stops a region ------------------------------------------------------------------------------------

SQUARE = nn.Parameter(torch.randn(LENGTH, LENGTH))
MIXED = {
    "softmax": (lambda m, h: h.softmax(1), "amax reduces over the tokens"),
    "cumsum": (lambda m, h: h.cumsum(1), "cumsum runs along the tokens"),
    "cummax": (lambda m, h: h.cummax(1)[0], "cummax runs along the tokens"),
    "logcumsumexp": (lambda m, h: h.logcumsumexp(0), "logcumsumexp runs along the tokens"),
    "glu": (lambda m, h: F.glu(h, 1).repeat(1, 2, 1), "glu runs along the tokens"),
    "kthvalue": (lambda m, h: h - h.kthvalue(2, 1, keepdim=True)[0], "kthvalue reduces over the tokens"),
    "median of all": (lambda m, h: h - h.median(), "median reduces over the tokens"),
    "order": (lambda m, h: h[:, m.order[:6] % LENGTH], "index picks along the tokens"),
    "order by data": (lambda m, h: h * h[:, :, 0].argsort(1)[..., None], "sort sorts along the tokens"),
    "add": (lambda m, h: h.index_add(1, m.order[:6] % LENGTH, h), "index_put picks along the tokens"),
    "overwrite": (
        lambda m, h: h.select_scatter(m.square[0, :1].expand(2, WIDE), 1, 2),
        "select_scatter takes, joins or pads a part of the tokens",
    ),
    "strides": (lambda m, h: h.as_strided(h.shape, (WIDE, 2 * WIDE, 1)), "as_strided picks by strides"),
    "sort": (lambda m, h: h.sort(1)[0], "sort sorts along the tokens"),
    "mean": (lambda m, h: h - h.mean(1, keepdim=True), "mean reduces over the tokens"),
    "mean of all": (lambda m, h: h + h.detach().mean(), "add needs the sum over all tokens"),
    "largest": (lambda m, h: h / h.amax(1, keepdim=True), "amax reduces over the tokens"),
    "batch norm": (lambda m, h: m.norm(h.mT).mT, "var_mean reduces over the tokens"),
    "batch norm of rows": (lambda m, h: m.norm(h.flatten(0, 1)).view(h.shape), "var_mean reduces over the tokens"),
    "layer norm of tokens": (lambda m, h: F.layer_norm(h.mT, (LENGTH,)).mT, "var_mean reduces over the tokens"),
    "roll": (lambda m, h: h.roll(1, 1), "index picks along the tokens"),
    "shift": (lambda m, h: F.pad(h[:, 1:], (0, 0, 0, 1)), "slice takes, joins or pads a part of the tokens"),
    "halves": (lambda m, h: torch.cat([h[:, 3:], h[:, :3]], 1), "slice takes, joins or pads a part of the tokens"),
    "pick": (lambda m, h: h.flatten(0, 1)[m.order].view(h.shape), "index picks rows among all tokens"),
    "scatter": (lambda m, h: h.scatter(1, m.order[None, :4, None] % LENGTH, 0.0), "scatter picks along the tokens"),
    "convolution": (lambda m, h: m.conv(h.mT).mT, "convolution mixes tokens"),
    "product": (lambda m, h: m.square @ h, "view merges tokens that do not lie side by side"),
    "einsum": (lambda m, h: torch.einsum("ts,bsh->bth", m.square, h), "permute puts the tokens into another order"),
    "batch last": (lambda m, h: h.transpose(0, 1).contiguous(), "permute puts the tokens into another order"),
    "attention": (lambda m, h: (h @ h.mT).softmax(-1) @ h, "bmm has tokens along its batch and its rows"),
    "fused attention": (  # with a dimension of heads: without one, torch fuses it from 2.15
        lambda m, h: F.scaled_dot_product_attention(*[h[:, None]] * 3)[:, 0],
        "_scaled_dot_product_flash_attention_for_cpu mixes tokens",
    ),
    "position": (lambda m, h: h * m.square[0, :, None], "mul repeats unsqueeze along a part of the tokens"),
    "causal": (lambda m, h: torch.where(m.order[:6, None] > 2, h, -h), "where repeats gt along a part of the tokens"),
    "no rule": (lambda m, h: h.unfold(-1, WIDE, 1).squeeze(-2), "unfold has no rule for how tokens pass through it"),
}


@pytest.mark.parametrize("name", slow_but(MIXED, fast=list(MIXED)[::2]))
def test_what_mixes_tokens_is_refused_by_name(name):
    middle, reason = MIXED[name]
    module = mlp(
        middle, norm=nn.BatchNorm1d(WIDE), conv=nn.Conv1d(WIDE, WIDE, 3, padding=1), square=SQUARE,
        order=nn.Buffer(torch.randperm(TOKENS)),
    )  # fmt: skip
    joint = joint_of(module, floats())
    assert joint.regions == ()
    assert [(refused.module, refused.reason) for refused in joint.refused] == [("up", reason)]
    assert joint.refused[0].node in {node.name for node in joint.graph.graph.nodes}


def test_a_matrix_between_all_tokens():
    """Each token computes its row of the matrix by itself, and multiplies it with the rows of all tokens.

    Where those are given, the product is the token's own.
    """

    def between(m, h):
        rows = h.flatten(0, 1)
        return (m.row(rows) @ rows).view(h.shape)

    joint = joint_of(mlp(between, row=linear(WIDE, TOKENS)), floats())
    assert [region.module for region in joint.regions] == ["down"]
    assert joint.refused[0].module == "up" and "both by tokens and whole" in joint.refused[0].reason


def test_a_thin_way_back_into_the_region():
    """A mean over all tokens of two features would leave the region thin, and scales what is wide."""
    module = mlp(lambda m, h: h * m.b(m.a(h).mean((0, 1))), a=linear(WIDE, 2), b=linear(2, WIDE))
    joint = joint_of(module, floats())
    assert joint.regions == () and [r.reason for r in joint.refused] == ["addmm needs the sum over all tokens"]


def test_a_sequence_may_be_the_token():
    """What mixes the tokens of a sequence leaves the sequences apart: rows of the way back are sequences."""
    module = mlp(lambda m, h: h * m.b(m.a(h).mean(1, keepdim=True)), a=linear(WIDE, 2), b=linear(2, WIDE))
    joint = joint_of(module, floats())
    (region,) = joint.regions
    assert region.tokens == BATCH and region.states["addmm"] == Sharded((0,), LENGTH)
    assert [refused.module for refused in joint.refused] == ["up"]  # by tokens


def test_a_refused_stretch_leaves_the_others():
    parts = {"norm": nn.LayerNorm(WIDTH), "b": mlp(), "a": mlp(lambda m, h: h.cumsum(1))}
    joint = joint_of(Of(lambda m, x: m.b(m.norm(m.a(x))), **parts), floats())
    assert [region.module for region in joint.regions] == ["b"]
    assert [(refused.module, refused.reason) for refused in joint.refused] == [("a.up", "cumsum runs along the tokens")]


# --- no region --------------------------------------------------------------------------------------------


def _attention(split):
    def forward(m, x):
        y = F.scaled_dot_product_attention(*split(m.qkv(x)), is_causal=True)
        return m.out(y.transpose(1, 2).flatten(2))

    return Of(forward, qkv=linear(WIDTH, 3 * WIDTH), out=linear(WIDTH, WIDTH))


@pytest.mark.parametrize(
    "split",
    [
        lambda y: (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in y.chunk(3, -1)),
        lambda y: y.view(BATCH, LENGTH, 3, 2, -1).permute(2, 0, 3, 1, 4),
    ],
    ids=["chunks", "one view"],
)
def test_a_fused_projection_is_none(split):
    """Its three parts are as wide as what they are made of, and attention reads them whole."""
    joint = joint_of(_attention(split), floats())
    assert joint.regions == () and joint.refused == ()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(linear(WIDTH, WIDTH), nn.GELU(), linear(WIDTH, WIDTH)),
        nn.Sequential(linear(WIDTH, 2), nn.GELU(), linear(2, WIDTH)),
        nn.LayerNorm(WIDTH),
        loss(head=linear(WIDTH, WIDTH)),
    ],
    ids=["as wide", "thinner", "no product", "few words"],
)
def test_nothing_is_wide(module):
    inputs = (floats(),) if not isinstance(module, Of) else (floats(), labels(WIDTH))
    joint = joint_of(module, *inputs)
    assert joint.regions == () and joint.refused == ()


def test_one_token_is_not_split():
    assert joint_of(mlp(), floats(1, 1, WIDTH)).regions == ()
