"""The token flow: which stretches of a joint graph are one token's own, and what stops the others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.facts.tokens.states import PARTIAL, REPLICATED, Sharded
from tests.support.lanes import slow_but
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
    spelled,
)

TOKENS = BATCH * LENGTH
HEADS = 4


def region_of(module, *inputs, **options):
    joint = joint_of(module, *(inputs or (floats(),)), **options)
    assert not joint.refused
    (region,) = joint.regions
    return joint, region


def states(joint, region) -> dict[str, str]:
    """By operator, how the tokens lie in what it gives: of several, of the last."""
    names = {node.name: getattr(node.target, "_schema", None) for node in joint.graph.graph.nodes}
    return {
        names[name].name.split("::")[-1]: spelled(region.states[name])
        for name in (*region.forward, *region.backward)
        if names[name] is not None
    }


# --- regions ----------------------------------------------------------------------------------------------


def test_a_whole_region():
    """x @ up, relu, @ down, and the backward of all of it; biases enter whole, their gradients leave as sums."""
    joint, region = region_of(mlp())
    assert (region.kind, region.module, region.tokens) == ("mlp", "", TOKENS)
    assert (region.tangent, region.chain) == ("", ())  # the tangent is a token's own as well
    weights = {name: REPLICATED for name in ("primals_1", "primals_2", "primals_4", "primals_5")}
    tokens = {name: Sharded((0, 1)) for name in ("primals_3", "tangents_1")}
    assert {name: region.states[name] for name in region.inputs} == weights | tokens
    left = [(name, spelled(region.states[name])) for name in region.outputs]
    assert left == [("addmm_1", "0"), ("mm_1", "partial"), ("mm_2", "0"), ("mm_3", "partial"), ("sum_2", "partial")]
    assert set(region.outputs) <= region.nodes and not region.nodes.intersection(region.inputs)
    # addmm, relu and its mask, the gradient of the relu before and after, in 8 bytes but the mask in one
    assert region.row_bytes == WIDE * 8
    assert region.wide_bytes == TOKENS * WIDE * (4 * 8 + 1)


MIDDLES = {
    "gelu": lambda m, h: F.gelu(h),
    "gelu by tanh": lambda m, h: F.gelu(h, approximate="tanh"),
    "silu": lambda m, h: F.silu(h),
    "clamp": lambda m, h: h.clamp(-1, 1),
    "dropout": lambda m, h: F.dropout(h.relu(), 0.5),
    "layer norm": lambda m, h: m.norm(h.relu()),
    "rms norm": lambda m, h: F.rms_norm(h, (WIDE,)),
    "unit length": lambda m, h: F.normalize(h, dim=-1),
    "softmax": lambda m, h: h.softmax(-1),
    "logsumexp": lambda m, h: h - h.logsumexp(-1, keepdim=True),
    "deviation": lambda m, h: h / h.std(-1, keepdim=True),
    "product": lambda m, h: h * h[..., :2].prod(-1, keepdim=True),
    "sort": lambda m, h: h.sort(-1)[0],
    "heads": lambda m, h: h.view(BATCH, LENGTH, HEADS, -1).permute(0, 2, 1, 3).softmax(-1).transpose(1, 2).flatten(2),
    "heads first": lambda m, h: h.view(BATCH, LENGTH, HEADS, -1).movedim(2, 0).exp().movedim(0, 2).flatten(2),
    "one sequence": lambda m, h: h.flatten(0, 1).relu().view(BATCH, LENGTH, WIDE),
    "heads of a token": lambda m, h: ((v := h.view(BATCH, LENGTH, HEADS, -1)) @ v.mT @ v).flatten(2),
    "interleaved": lambda m, h: torch.stack(h.view(BATCH, LENGTH, 2, -1).unbind(2), -1).exp().flatten(2),
    "mask": lambda m, h: h.masked_fill(torch.arange(WIDE) > 20, 0.0) * h,
    "feature scale": lambda m, h: h.sin() * m.scale,
    "table": lambda m, h: h.sin() * F.one_hot(h.argmax(-1), WIDE),
    "picked features": lambda m, h: h.sin()[..., m.places],
    "rolled features": lambda m, h: h.roll(3, -1).sin(),
    "added to features": lambda m, h: h.index_add(-1, m.places, h.sin()),
    "features overwritten": lambda m, h: h.sin().index_copy(-1, m.places, h),
    "a feature overwritten": lambda m, h: h.sin().select_scatter(h[..., 1], -1, 4),
    "largest so far": lambda m, h: h.cummax(-1)[0],
    "logarithms of sums": lambda m, h: h.logcumsumexp(-1),
    "above the fourth": lambda m, h: h * (h > h.kthvalue(4, -1, keepdim=True)[0]),
    "median": lambda m, h: h.sin() - h.median(-1, keepdim=True)[0],
    "diagonal": lambda m, h: h * h.unflatten(-1, (4, 8)).diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True),
    "buckets": lambda m, h: h * torch.bucketize(h, m.scale.detach()),
    "fake quantized": lambda m, h: torch.fake_quantize_per_tensor_affine(h.float(), 0.1, 0, -8, 7).to(h.dtype),
    "groups of a row": lambda m, h: F.group_norm(h.flatten(0, 1), 4, m.scale, m.scale).view(h.shape),
    "embedded": lambda m, h: h * F.embedding(h.argmax(-1), m.scale[:, None].expand(-1, WIDE)),
    "a number for each position": lambda m, h: h.sin() * torch.arange(LENGTH)[None, :, None],
}


@pytest.mark.parametrize("name", slow_but(MIDDLES, fast=list(MIDDLES)[::2]))
def test_what_a_token_does_by_itself(name):
    places = nn.Buffer(torch.arange(WIDE).flip(0))
    parts = {"norm": nn.LayerNorm(WIDE), "scale": nn.Parameter(torch.ones(WIDE)), "places": places}
    _, region = region_of(mlp(MIDDLES[name], **parts))
    assert region.kind == "mlp"
    assert spelled(region.states["addmm"]) == "0"
    sums = [name for name in region.outputs if region.states[name] == PARTIAL]
    assert len(sums) >= 3 and "addmm_1" in region.outputs  # gradients of weights and biases; y


NARROWER = {
    "split": lambda m, h: (parts := h.split(WIDE // 2, -1))[0].sigmoid() * parts[1],
    "chunk": lambda m, h: F.silu((parts := h.chunk(2, -1))[0]) * parts[1],
    "slice": lambda m, h: h[..., : WIDE // 2].exp() * h[..., WIDE // 2 :],
    "gather": lambda m, h: h.sin().gather(-1, m.places.expand(BATCH, LENGTH, -1)),
    "topk": lambda m, h: h.topk(WIDE // 2, -1)[0],
    "glu": lambda m, h: F.glu(h, -1),
}


@pytest.mark.parametrize("name", NARROWER)
def test_a_part_of_the_features(name):
    places = nn.Buffer(torch.arange(WIDE - 1, -1, -2))
    _, region = region_of(mlp(NARROWER[name], WIDE // 2, places=places))
    assert region.kind == "mlp" and "addmm_1" in region.outputs


def test_two_branches_of_one_input():
    """Their gradients for x are added within the region: one value leaves instead of two."""
    module = Of(
        lambda m, x: m.down(torch.cat([m.a(x).relu(), m.b(x).tanh()], -1)),
        a=linear(WIDTH, 16), b=linear(WIDTH, 16), down=linear(32, WIDTH),
    )  # fmt: skip
    joint, region = region_of(module)
    thin = [name for name in region.outputs if region.states[name] != PARTIAL]
    assert thin == ["addmm_2", "add"]
    assert states(joint, region)["cat"] == "0,1"


def test_gated():
    module = Of(
        lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)),
        gate=linear(WIDTH, WIDE, False), up=linear(WIDTH, WIDE, False), down=linear(WIDE, WIDTH, False),
    )  # fmt: skip
    _, region = region_of(module)
    assert region.inputs == ("primals_1", "primals_2", "primals_3", "primals_4", "tangents_1")
    assert [spelled(region.states[name]) for name in region.outputs] == ["0", "partial", "partial", "partial", "0,1"]


def test_adapters_inside():
    """LoRA on a frozen layer: what lies between the two factors is thin enough to cross the border."""
    module = Of(
        lambda m, x: m.down(F.silu(m.up(x) + m.b(m.a(x)))),
        up=linear(WIDTH, WIDE).requires_grad_(False), down=linear(WIDE, WIDTH).requires_grad_(False),
        a=linear(WIDTH, 1, False), b=linear(1, WIDE, False),
    )  # fmt: skip
    joint, region = region_of(module)
    crossing = {node.name for node in joint.graph.graph.nodes if node.name in region.inputs and node.name[0] != "p"}
    assert crossing == {"mm", "tangents_1"}
    assert [name for name in region.outputs if region.states[name] == PARTIAL] == ["mm_3"]  # of b; a's is made outside


@pytest.mark.parametrize("shape", [(7, WIDTH), (1, 7, WIDTH), (7, 1, WIDTH), (2, 3, 2, WIDTH)])
def test_dimensions_before_the_features(shape):
    _, region = region_of(mlp(), floats(*shape))
    kept = tuple(n for n, size in enumerate(shape[:-1]) if size != 1)
    assert region.states["primals_3"] == Sharded(kept)
    assert region.tokens == torch.Size(shape[:-1]).numel()


@pytest.mark.parametrize("length", [WIDE // BATCH, WIDTH // BATCH])
def test_as_many_tokens_as_features(length):
    """A weight has as many rows as there are tokens, and is still whole."""
    _, region = region_of(mlp(lambda m, h: m.norm(h), norm=nn.LayerNorm(WIDE)), floats(BATCH, length, WIDTH))
    whole = [name for name in region.inputs if region.states[name] == REPLICATED]
    assert len(whole) == 6 and len(region.inputs) == 8


def test_what_leaves_wide():
    """Where nothing makes the rows thin again a region still reduces what its wide values take together."""
    _, region = region_of(Of(lambda m, x: m.up(x).sin().exp().sum(), up=linear(WIDTH, WIDE)))
    assert region.kind == "loss" and region.outputs[0] == "sum_1" and region.states["sum_1"] == PARTIAL


def test_a_wide_mean_of_the_users():
    """A mean over tokens leaves as a sum does."""
    module = mlp()
    module.function = lambda m, x: (m.down(h := m.up(x).relu()), h.abs().mean())
    _, region = region_of(module)
    assert region.states["mean"] == PARTIAL and "mean" in region.outputs


def test_a_thin_part_of_what_is_wide():
    """What reads a view of a part belongs to the region: the view itself would hold all of what is wide."""
    joint, region = region_of(mlp(lambda m, h: h[..., :WIDTH].sin(), WIDTH))
    assert "sin" in states(joint, region) and "slice_1" not in region.outputs


def test_a_wide_sum_of_the_users():
    """The sum of |h| is one more output; its gradient comes in."""
    module = mlp()
    module.function = lambda m, x: (m.down(h := m.up(x).relu()), h.abs().sum())
    _, region = region_of(module)
    assert [name for name in region.outputs if region.states[name] == PARTIAL][0] == "sum_1"


def test_experts_with_sorted_rows():
    """Rows are sorted by expert within a shard: what is in that order, and what points into it, stays in the region."""
    import transformers.integrations.moe  # noqa: F401  registers the product that the CPU has

    grouped, experts, each = torch.ops.transformers.grouped_mm_fallback, 4, 2

    def forward(m, x):
        rows = x.flatten(0, 1)
        weights, chosen = m.router(rows).softmax(-1).topk(each, -1)
        expert, order = torch.sort(chosen.reshape(-1))
        ends = torch.histc(expert.float(), bins=experts, min=0, max=experts - 1).cumsum(0, dtype=torch.int32)
        y = grouped(grouped(rows[order // each], m.up, ends).relu(), m.down, ends)
        y = y * weights.reshape(-1)[order][:, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(back))
        return y[back].view(-1, each, WIDTH).sum(1).view(x.shape)

    module = Of(
        forward,
        router=linear(WIDTH, experts),
        up=nn.Parameter(torch.randn(experts, WIDTH, WIDE)),
        down=nn.Parameter(torch.randn(experts, WIDE, WIDTH)),
    )
    joint, region = region_of(module)
    assert region.kind == "mlp"
    found = states(joint, region)
    twice = f"0 x{each}"
    assert found["sort"] == f"{twice} routed | {twice} routed at tokens"
    assert found["iota"] == f"{twice} routed at routed"
    assert found["histc"] == found["cumsum"] == "routing"
    assert found["grouped_mm_fallback"] == f"{twice} routed"
    assert found["grouped_mm_fallback_backward"] == f"{twice} routed | partial"
    assert spelled(region.states["index_put"]) == f"{twice} at routed"  # where each row of the tokens' has gone
    assert spelled(region.states["index_2"]) == twice  # and back
    assert all(region.states[name] == PARTIAL or region.states[name].crosses for name in region.outputs)


def test_experts_with_gathered_weights():
    """A copy of an expert's weights for each row that it gets is as wide as can be."""

    def forward(m, x):
        weights, chosen = m.router(rows := x.flatten(0, 1)).softmax(-1).topk(2, -1)
        expert = chosen.flatten()
        y = torch.bmm(rows.repeat_interleave(2, 0)[:, None], m.up[expert]).relu()
        y = torch.bmm(y, m.down[expert]).squeeze(1) * weights.flatten()[:, None]
        return y.view(-1, 2, WIDTH).sum(1).view(x.shape)

    up, down = nn.Parameter(torch.randn(4, WIDTH, WIDE)), nn.Parameter(torch.randn(4, WIDE, WIDTH))
    joint, region = region_of(Of(forward, router=linear(WIDTH, 4), up=up, down=down))
    found = states(joint, region)
    assert region.row_bytes == 2 * WIDTH * WIDE * 8
    assert found["bmm"] == found["index"] == "0 x2" and found["index_put"] == "partial"


# --- losses -----------------------------------------------------------------------------------------------


def test_a_loss():
    """No product makes the logits thin again; all of the backward depends on the one tangent."""
    joint, region = region_of(loss(), floats(), labels())
    assert (region.kind, region.module, region.tangent) == ("loss", "head", "tangents_1")
    assert "gather" in region.outputs and region.row_bytes == WORDS * 8
    chain = [node.target for node in joint.graph.graph.nodes if node.name in region.chain]
    assert chain == [torch.ops.aten.div.Tensor]  # by the number of labels that count


def test_a_gradient_that_needs_the_forward_of_each_token():
    """Scaled by something thin of the token's own forward, which the region takes in."""

    def squared(z, y):
        return cross_entropy(z, y, reduction="none").square().mean()

    joint, region = region_of(loss(squared), floats(), labels())
    assert (region.kind, region.tangent) == ("loss", "tangents_1") and "pow" in states(joint, region)


def test_the_layer_below_a_loss_stays_a_region_of_its_own():
    joint = joint_of(Of(lambda m, x, y: m.head(x + m.a(x), y), a=mlp(), head=loss()), floats(), labels())
    assert [(region.kind, region.tangent) for region in joint.regions] == [("mlp", ""), ("loss", "tangents_1")]


def test_weights_of_classes():
    """What the loss is divided by is made of the labels alone."""
    weights = torch.arange(1.0, WORDS + 1).double()
    _, region = region_of(loss(lambda z, y: cross_entropy(z, y, weight=weights)), floats(), labels())
    assert region.tangent == "tangents_1"


def test_features_between_the_dimensions_of_the_tokens():
    """As cross entropy takes logits of several sequences."""
    joint, region = region_of(loss(lambda z, y: F.cross_entropy(z.mT, y)), floats(), labels())
    assert states(joint, region)["gather"] == "0,3" and region.tangent == "tangents_1"


def test_a_gradient_that_needs_the_forward_of_all_tokens():
    """Scaled by something of the region's own forward: that is known only when all shards are done."""

    def of_itself(z, y):
        each = cross_entropy(z, y, reduction="none")
        return (each * each).sum() / each.sum()

    _, region = region_of(loss(of_itself), floats(), labels())
    assert (region.kind, region.tangent) == ("loss", "")


@pytest.mark.parametrize(
    "returned",
    [
        lambda z, y: (cross_entropy(z, y), z.logsumexp(-1).square().mean()),
        lambda z, y: cross_entropy(z, y, reduction="none"),
        lambda z, y: (cross_entropy(z, y), z),
    ],
    ids=["two scalars", "a number a token", "the logits too"],
)
def test_tangents_that_are_not_one_scalar(returned):
    _, region = region_of(loss(returned), floats(), labels())
    assert (region.kind, region.tangent, region.chain) == ("loss", "", ())


def test_two_heads_are_two_regions():
    module = Of(
        lambda m, x, y: cross_entropy(m.head(x), y) + 0.3 * cross_entropy(m.other(x), y),
        head=linear(WIDTH, WORDS), other=linear(WIDTH, 2 * WORDS),
    )  # fmt: skip
    joint = joint_of(module, floats(), labels())
    assert [(region.kind, region.module) for region in joint.regions] == [("loss", "head"), ("loss", "other")]
    assert not joint.regions[0].nodes & joint.regions[1].nodes - {"view", "view_2"}
