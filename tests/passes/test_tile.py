"""The rewrite into tiles: what the graphs look like, and that they compute the same."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.passes.tiles.body import sizes
from tests.support.lanes import slow_but
from tests.support.models import build
from tests.support.printer import golden, text
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


def layers(count: int, last: nn.Module | None = None) -> Of:
    blocks = [mlp() for _ in range(count)] + ([last] if last else [])
    parts = {"blocks": nn.ModuleList(blocks), "norms": nn.ModuleList(nn.LayerNorm(WIDTH) for _ in blocks)}

    def forward(m, x):
        for norm, block in zip(m.norms, m.blocks, strict=True):
            x = x + block(norm(x))
        return x

    return Of(forward, **parts)


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


@pytest.mark.parametrize(("tokens", "shards"), [(1, 1), (1, 8), (5, 2), (5, 8), (12, 5), (12, 12), (4096, 7)])
def test_sizes(tokens, shards):
    found = sizes(tokens, shards)
    assert sum(found) == tokens and len(found) <= shards
    assert set(found[:-1]) <= {found[0]} and 0 < found[-1] <= found[0]


def test_a_sequence_shorter_than_the_number_of_shards():
    joint = joint_of(mlp(), floats(1, 3, WIDTH))
    assert [len(calls(joint.tiled(n).tile_0, "invoke_subgraph")) for n in (2, 3, 8)] == [2, 3, 3]
    assert largest_error(joint) < 1e-12


# --- what it computes -------------------------------------------------------------------------------------


def largest_error(joint: Joint) -> float:
    assert joint.regions
    return max(joint.error(shards) for shards in SHARDS)


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


OFTEN = ("cross entropy", "label smoothing", "shifted labels", "z", "tied to the embedding", "distillation")


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


@pytest.mark.parametrize("name", MIDDLES)
def test_middles(name):
    places = nn.Buffer(torch.randperm(32, generator=torch.Generator().manual_seed(4)))
    assert largest_error(joint_of(mlp(MIDDLES[name], places=places), X)) < 1e-12


def test_means_over_tokens():
    module = mlp()
    module.function = _sparse
    assert largest_error(joint_of(module, X)) < 1e-12
    assert largest_error(joint_of(module, X.bfloat16().detach(), dtype=torch.bfloat16)) < 0.01


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

MODELS = ("llama", "qwen3", "gemma3", "gpt2", "t5", "gpt_oss", "qwen3_moe")


@functools.cache
def joint_of_model(name: str, dtype: torch.dtype = torch.float32, **options) -> Joint:
    model, inputs = build(name, **options)
    keys = list(inputs)
    called = Of(lambda m, *given: m.model(**dict(zip(keys, given, strict=True))), model=model)
    return joint_of(called, *inputs.values(), dtype=dtype)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("name", slow_but(MODELS, fast=["llama"]))
def test_models(name, shards):
    joint = joint_of_model(name)
    assert {region.kind for region in joint.regions} == {"mlp", "loss"}
    assert joint.error(shards) < 1e-6


def test_experts_whose_weights_are_gathered():
    assert joint_of_model("qwen3_moe", experts="batched_mm").error(3) < 1e-6


@pytest.mark.parametrize("name", slow_but(["llama", "qwen3_moe"], fast=["llama"]))
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
