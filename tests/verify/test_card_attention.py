"""The verifier's stand-in for a card's kernels of attention, against the CPU's kernel; and broken tiles of them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import fx

from memgraph.verify.attention import attend
from memgraph.verify.smaller import Relations, Sizes
from memgraph.verify.tiles import TileError, verify_tiles
from tests.support import card_kernels, tiles
from tests.support.attention import Attention, Joint, joint_of, window
from tests.support.card_kernels import called, cudnn, efficient
from tests.support.splits import calls

aten = torch.ops.aten
KERNELS = {"efficient": efficient, "cudnn": cudnn}
SAME = Sizes({}, {})


@pytest.fixture(autouse=True)
def kernels():
    with card_kernels.on_the_cpu():
        yield


# --- the stand-in -----------------------------------------------------------------------------------------


def stand_in(target, *args, **kwargs):
    return attend(called(target, *args, **kwargs), args, kwargs, SAME)


def _is_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor)


def close(want, got) -> None:
    for one, other in zip(want, got, strict=True):
        if _is_tensor(one) and one.is_floating_point():
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
            torch.testing.assert_close(other, one, rtol=2e-5, atol=2e-6)
        elif not _is_tensor(one):
            assert one == other


def drawn(*shape: int) -> torch.Tensor:
    """[batch, heads, tokens, features], laid out as projections make it."""
    batch, heads, tokens, features = shape
    return torch.randn(batch, tokens, heads, features).transpose(1, 2)


def given(queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    bias = torch.where(torch.rand(2, 3, queries, keys) < 0.7, torch.randn(2, 3, queries, keys), float("-inf"))
    bias[..., 0] = 0  # each query has a key
    return drawn(2, 3, queries, 8), drawn(2, 3, keys, 8), drawn(2, 3, keys, 8), bias


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("queries, keys", [(32, 32), (40, 17), (7, 40)])
def test_memory_efficient_attention(queries, keys, scale):
    q, k, v, bias = given(queries, keys)
    forward, backward = (
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
    )
    want = forward(q, k, v, bias, True, scale=scale)
    close(want, stand_in(forward, q, k, v, bias, True, scale=scale))
    more = (drawn(2, 3, queries, 8), q, k, v, bias, *want, 0.0, [True, True, True, False])
    close(backward(*more, scale=scale), stand_in(backward, *more, scale=scale))


@pytest.mark.parametrize("queries, keys", [(32, 32), (7, 40)])
def test_cudnn(queries, keys):
    q, k, v, bias = given(queries, keys)
    forward, backward = (
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_cudnn_attention_backward.default,
    )
    want = forward(q, k, v, bias, True)
    close(want, stand_in(forward, q, k, v, bias, True))
    out, sums, _, _, _, _, seed, offset, _ = want
    more = (drawn(2, 3, queries, 8), q, k, v, out, sums, seed, offset, bias, None, None, queries, keys, 0.0, False)
    close(backward(*more), stand_in(backward, *more))
    told = (*more[:11], queries + 1, *more[12:])
    with pytest.raises(ValueError, match=f"told of {queries + 1} queries"):
        attend(called(backward, *told), told, {}, SAME)


def test_heads_that_share_keys():
    q, k, v, bias = given(8, 8)
    q = drawn(2, 6, 8, 8)
    bias = bias.repeat_interleave(2, 1)
    forward = aten._scaled_dot_product_cudnn_attention.default
    backward = aten._scaled_dot_product_cudnn_attention_backward.default
    keys, values = (item.repeat_interleave(2, 1) for item in (k, v))
    want = forward(q, keys, values, bias, True)
    close(want[:2], stand_in(forward, q, k, v, bias, True)[:2])
    tangent, rest = drawn(2, 6, 8, 8), (*want[:2], *want[6:8], bias, None, None, 8, 8, 0.0, False)
    gradients = backward(tangent, q, keys, values, *rest)
    got = stand_in(backward, tangent, q, k, v, *rest)
    for one, other in zip(gradients[1:], got[1:], strict=True):
        torch.testing.assert_close(other, one.unflatten(1, (3, 2)).sum(2), rtol=2e-5, atol=2e-6)


def test_a_query_without_a_key_gets_nothing():
    q, k, v, bias = given(8, 8)
    bias[0, 0, 3] = float("-inf")
    out, sums, *_ = stand_in(aten._scaled_dot_product_efficient_attention.default, q, k, v, bias, True)
    assert not out[0, 0, 3].any() and out.isfinite().all() and sums[0, 0, 3] == float("-inf")
    assert (sums[..., 8:] == float("inf")).all()


@pytest.mark.parametrize("more", [(True, 0.1), (True, 0.0, True)])
def test_calls_that_ask_for_more(more):
    q, k, v, bias = given(8, 8)
    args = (q, k, v, bias, *more)
    node = called(aten._scaled_dot_product_efficient_attention.default, *args)
    with pytest.raises(NotImplementedError):
        attend(node, args, {}, SAME)


# --- smaller sizes ----------------------------------------------------------------------------------------


@functools.cache
def joint(name: str = "efficient", length: int = 100) -> Joint:
    return joint_of(Attention(window(30), attend=KERNELS[name]), length=length, dtype=torch.float32)


def test_sums_stay_as_much_longer_as_they_are():
    """4,999 queries have sums of 5,024: however few they become, there are more sums than queries."""
    relations = Relations()
    relations.read(joint(length=4999).graph.graph)
    sizes = relations.smaller()
    assert sizes[5024] - sizes[4999] == sizes[25] and sizes[4999] < 200


# --- broken tiles -----------------------------------------------------------------------------------------


def refusal(edit, name: str = "efficient") -> str:
    return tiles.refusal(joint(name), edit)


def attention(body) -> fx.Node:
    return next(node for node in body.graph.nodes if "attention" in str(node.target))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tile", ["tile_0", "tile_1"])
def test_attention_without_the_mask(name, tile):
    def edit(tiled):
        call = attention(tiled.get_submodule(tile).body_0)
        bias = next(read for read in call.all_input_nodes if read.name.startswith("expand"))
        call.args = tuple(None if item is bias else item for item in call.args)

    assert "differs from the whole" in refusal(edit, name)


def test_sums_of_another_shard():
    def edit(tiled):
        first, second = calls(tiled.tile_1, "invoke_subgraph")
        sums = next(
            n for n, read in enumerate(second.args) if n > 1 and read.meta["val"].dim() == 3 and read.args[1:2] == (2,)
        )
        taken = second.args[sums]
        taken.args = (taken.args[0], 2, 0, taken.args[3] - taken.args[2])

    assert "differs from the whole" in refusal(edit)


def test_another_number_of_queries():
    def edit(tiled):
        call = attention(tiled.tile_1.body_0)
        call.args = (*call.args[:11], call.args[11] + 1, *call.args[12:])

    assert "queries" in refusal(edit, "cudnn")


def test_one_more_shard_than_was_asked_for():
    found = joint()
    with pytest.raises(TileError, match="runs 2 shards, not 4"):
        verify_tiles(found.graph, found.tiled(2), [(region, 4) for region in found.regions])
