"""The rewrite into tiles: the tiled graph computes the same."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.lanes import slow_but
from tests.support.models import build
from tests.support.splits import calls
from tests.support.tiles import (
    BATCH,
    LENGTH,
    WIDTH,
    WORDS,
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


def ignoring(many: int):
    labelled = labels()
    labelled.view(-1)[:many] = -100
    return labelled


def _with_z(z, y):
    return cross_entropy(z, y) + 1e-2 * z.logsumexp(-1).square().mean()


def _for_each_token(z, y):
    return z.log_softmax(-1).gather(-1, y[..., None]).squeeze(-1)


def _distilled(z, teacher):
    return F.kl_div(z.log_softmax(-1), teacher.softmax(-1), reduction="sum")


def _focal(z, y):
    probability = z.softmax(-1).gather(-1, y[..., None]).squeeze(-1)
    return ((1 - probability).square() * -probability.log()).mean()


def _items(m, x, y, items):
    return cross_entropy(m.head(x), y, reduction="sum") / items


def _two(m, x, y):
    return cross_entropy(m.head(x), y) + 0.3 * cross_entropy(m.other(x), y)


def _tied(m, ids, y):
    return cross_entropy(F.linear(torch.tanh(F.embedding(ids, m.weight)), m.weight), y)


def _adapted(m, x, y):
    return cross_entropy(m.head(x) + m.b(m.a(x)), y)


def _of_rows(z, y):
    """The labels' entries picked row by row."""
    return -z.flatten(0, 1).log_softmax(-1)[torch.arange(BATCH * LENGTH), y.flatten()].mean()


def _clipped_ratio(z, y, old, advantage, mask):
    ratio = (_for_each_token(z, y) - old).exp()
    each = torch.min(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None])
    return -(each * mask).sum() / mask.sum()


def _preferred(z, y, old):
    better, worse = (_for_each_token(z, y) - old).sum(-1)
    return -F.logsigmoid(0.1 * (better - worse))


def _padded(z, y):
    """Words that are only there to fill up the vocabulary."""
    z = z.clone()
    z[..., 20:] = -1e9
    return cross_entropy(z, y.clamp(max=19))


def _more_words(m, x, y):
    return cross_entropy(torch.cat([m.head(x), m.other(x)], -1), y)


X, Y = floats(), labels()
OLD, ADVANTAGE = floats(BATCH, LENGTH).detach() - 3, torch.tensor([0.7, -1.2])
CLIPPED = Of(lambda m, x, *more: _clipped_ratio(m.head(x), *more), head=linear(WIDTH, WORDS))
PREFERRED = Of(lambda m, x, *more: _preferred(m.head(x), *more), head=linear(WIDTH, WORDS))
TEACHER = floats(BATCH, LENGTH, WORDS).detach()
ADAPTERS = {"head": linear(WIDTH, WORDS, False).requires_grad_(False), "a": linear(WIDTH, 2), "b": linear(2, WORDS)}
LOSSES = {
    "cross entropy": (loss(), X, Y),
    "bias": (loss(head=linear(WIDTH, WORDS)), X, Y),
    "label smoothing": (loss(lambda z, y: cross_entropy(z, y, label_smoothing=0.1)), X, Y),
    "most ignored": (loss(), X, ignoring(9)),
    "all of a shard ignored": (loss(), X, ignoring(6)),
    "shifted labels": (loss(lambda z, y: cross_entropy(z, F.pad(y[:, 1:], (0, 1), value=-100))), X, Y),
    "sum by the number of items": (Of(_items, head=linear(WIDTH, WORDS)), X, ignoring(3), torch.tensor(40)),
    "z": (loss(_with_z), X, Y),
    "soft-capped": (loss(lambda z, y: cross_entropy(3 * torch.tanh(z / 3), y)), X, Y),
    "tied to the embedding": (Of(_tied, weight=nn.Parameter(torch.randn(WORDS, WIDTH))), labels(), Y),
    "adapters at the head": (Of(_adapted, **ADAPTERS), X, Y),
    "for each token": (loss(_for_each_token), X, Y),
    "not reduced": (loss(lambda z, y: cross_entropy(z, y, reduction="none")), X, Y),
    "two heads": (Of(_two, head=linear(WIDTH, WORDS), other=linear(WIDTH, WORDS)), X, Y),
    "the logits too": (loss(lambda z, y: (cross_entropy(z, y), z)), X, Y),
    "class weights": (loss(lambda z, y: cross_entropy(z, y, weight=torch.arange(1.0, WORDS + 1).double())), X, Y),
    "focal": (loss(_focal), X, Y),
    "hits beside it": (loss(lambda z, y: (cross_entropy(z, y), (z.argmax(-1) == y).sum())), X, Y),
    "distillation": (loss(_distilled), X, floats(BATCH, LENGTH, WORDS)),
    "sequences": (loss(lambda z, y: F.cross_entropy(z.mT, y, label_smoothing=0.1)), X, Y),
    "sequences of probabilities": (loss(lambda z, p: F.cross_entropy(z.mT, p.softmax(-1).mT)), X, TEACHER),
    "each word": (loss(lambda z, p: F.binary_cross_entropy_with_logits(z, p.sigmoid())), X, TEACHER),
    "logits of a teacher": (loss(F.mse_loss), X, TEACHER),
    "rows": (loss(_of_rows), X, Y),
    "clipped ratio": (CLIPPED, X, Y, OLD, ADVANTAGE.double(), OLD.abs() % 1),
    "preferred": (PREFERRED, X, Y, OLD),
    "temperature of a sequence": (loss(lambda z, y: cross_entropy(z / ADVANTAGE.abs()[:, None, None], y)), X, Y),
    "filled-up vocabulary": (loss(_padded), X, Y),
    "more words": (Of(_more_words, head=linear(WIDTH, WORDS), other=linear(WIDTH, 8)), X, Y),
}


OFTEN = ("cross entropy", "shifted labels", "tied to the embedding")


@pytest.mark.parametrize("name", slow_but(LOSSES, fast=OFTEN))
def test_losses(name):
    joint = joint_of(*LOSSES[name])
    assert {region.kind for region in joint.regions} == {"loss"}
    assert largest_error(joint) < 1e-12


def _sparse(m, x):
    return m.down(h := m.up(x).relu()), h.mean(), h.square().mean((0, 1))


MIDDLES = {
    "glu": lambda m, h: torch.cat([F.glu(h, -1), h[..., :16].sin()], -1),
    "picked": lambda m, h: h.sin()[..., m.places] + h.roll(1, -1),
    "overwritten": lambda m, h: h.index_copy(-1, m.places[:4], h[..., :4].sin()).select_scatter(h[..., 1], -1, 4),
    "largest so far": lambda m, h: h.cummax(-1)[0] + h.logcumsumexp(-1),
    "some": lambda m, h: h * (h > h.kthvalue(4, -1, keepdim=True)[0]) - h.median(-1, keepdim=True)[0],
    "embedded": lambda m, h: h * F.embedding(h.argmax(-1), m.up.weight.repeat(1, 4)),
    "parts": lambda m, h: (h[..., :4, None] * h[..., None, :8]).flatten(-2),
    "a number for each position": lambda m, h: h * torch.arange(LENGTH)[None, :, None],
}


@pytest.mark.parametrize("name", slow_but(MIDDLES, fast=list(MIDDLES)[::3]))
def test_middles(name):
    places = nn.Buffer(torch.randperm(32, generator=torch.Generator().manual_seed(4)))
    assert largest_error(joint_of(mlp(MIDDLES[name], places=places), X)) < 1e-12


@pytest.mark.slow
def test_means_over_tokens():
    module = mlp()
    module.function = _sparse
    assert largest_error(joint_of(module, X)) < 1e-12
    assert largest_error(joint_of(module, X.bfloat16().detach(), dtype=torch.bfloat16)) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "inputs",
    [(floats(2, 6, WIDTH),), (floats(1, 5, WIDTH),), (floats(11, WIDTH),), (floats(6, 2, WIDTH).transpose(0, 1),)],
    ids=["batch", "one sequence", "rows", "strides"],
)
def test_layers(inputs):
    assert largest_error(joint_of(layers(2), *inputs)) < 1e-12


def test_upcast():
    """Logits of bfloat16 products, in float32 from there on: gradients of weights are summed in float32."""
    joint = joint_of(loss(lambda z, y: cross_entropy(z.float(), y)), X.detach().bfloat16(), Y, dtype=torch.bfloat16)
    for node in calls(joint.tiled(3).tile_0, "memgraph.shard_add"):
        assert node.meta["val"].dtype == torch.float32
    assert largest_error(joint) < 0.01


# --- models -----------------------------------------------------------------------------------------------

MODELS = ("llama", "gemma3", "gpt2", "t5", "gpt_oss", "qwen3_moe")


@functools.cache
def joint_of_model(name: str, dtype: torch.dtype = torch.float32, **options) -> Joint:
    model, inputs = build(name, **options)
    keys = list(inputs)
    called = Of(lambda m, *given: m.model(**dict(zip(keys, given, strict=True))), model=model)
    return joint_of(called, *inputs.values(), dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("name", slow_but(MODELS, fast=["llama"]))
def test_models(name, shards):
    joint = joint_of_model(name)
    assert {region.kind for region in joint.regions} == {"mlp", "loss"}
    assert joint.error(shards) < 1e-6


@pytest.mark.slow
def test_experts_whose_weights_are_gathered():
    assert joint_of_model("qwen3_moe", experts="batched_mm").error(3) < 1e-6


@pytest.mark.parametrize("name", slow_but(["llama", "qwen3_moe"], fast=[]))
def test_bfloat16_is_no_worse_for_shards(name):
    """Against float32 with the same weights."""
    joint = joint_of_model(name, torch.bfloat16)
    wide = tuple(item.float() if item.dtype.is_floating_point else item for item in joint.data)
    exact = Joint(joint_of_model(name).graph, wide)
    want, plain, tiled = exact.run(exact.graph), joint.run(joint.graph), joint.run(joint.tiled(3))
    for one, before, after in zip(want, plain, tiled, strict=True):
        if isinstance(one, torch.Tensor) and one.dtype.is_floating_point:
            untiled, sharded = (float((one - item.float()).norm() / one.norm()) for item in (before, after))
            assert sharded <= 1.1 * untiled + 1e-3
