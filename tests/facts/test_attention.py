"""Calls of attention that can run in shards of their queries, and why others cannot."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.base import compat
from memgraph.facts.tokens.attention import find_attention
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, Sharded
from tests.support.attention import CLOSE, DTYPE, Attention, Joint, joint_of, packed, padded, positions, window
from tests.support.attention import alibi as by_distance
from tests.support.lanes import slow_but
from tests.support.tiles import Of

aten = torch.ops.aten
LENGTH = 24


@functools.cache
def windowed() -> Joint:
    return joint_of(Attention(window(5), layers=2))


def test_a_region_has_the_mask_and_both_sides_of_attention():
    first, second = windowed().regions
    assert (first.kind, first.tokens, first.module) == ("attention", LENGTH, "")
    assert first.forward[:4] == ("le", "sub", "lt", "bitwise_and")  # what makes the mask belongs to both
    assert set(first.forward) & set(second.forward) == {"le", "sub", "lt", "bitwise_and"}
    assert [name.split("_")[0] for name in first.outputs] == ["getitem"] * 5
    assert len(first.handed) == 2 and set(first.handed) < set(first.outputs)
    assert first.row_bytes == LENGTH * DTYPE.itemsize and not windowed().refused


def test_queries_are_in_shards_and_keys_are_whole():
    region = windowed().regions[0]
    nodes = {node.name: node for node in windowed().graph.graph.nodes}
    (call,) = (nodes[name] for name in region.forward if "attention" in name)
    query, key, value = (region.states[read.name] for read in call.args[:3])
    assert (query, key, value) == (Sharded((2,)), REPLICATED, REPLICATED)
    (back,) = (nodes[name] for name in region.backward if "attention" in name)
    states = [region.states[part.name] for part in sorted(back.users, key=lambda user: user.args[1])]
    assert states == [Sharded((2,)), PARTIAL, PARTIAL]
    assert all(nodes[name].meta["val"].shape[-2:] != (LENGTH, LENGTH) for name in region.inputs)


def documents() -> torch.Tensor:
    return torch.arange(LENGTH).div(7, rounding_mode="floor").repeat(2, 1)


FOUND = {
    "a window": lambda: joint_of(Attention(window(3))),
    "padding": lambda: joint_of(Attention(padded), torch.ones(2, LENGTH, dtype=torch.int64)),
    "packing": lambda: joint_of(Attention(packed), documents()),
    "a bias by distance": lambda: joint_of(Attention(by_distance)),
    "a block of keys": lambda: joint_of(Attention(lambda x: positions(x)[1] // 6 == positions(x)[0] // 6)),
    "a triangle": lambda: joint_of(Attention(lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(2))),
    "the keys of a longer mask": lambda: joint_of(
        Attention(lambda x: (torch.arange(40) <= torch.arange(x.shape[1])[:, None])[:, : x.shape[1]])
    ),
    "the same number for all": lambda: joint_of(
        Attention(lambda x: torch.full((x.shape[1], 1), 0.5, dtype=x.dtype) + positions(x)[1])
    ),
    "a table of padding": lambda: joint_of(
        Attention(lambda x, real: real.bool()[torch.arange(2)[:, None, None, None], positions(x)[1]] & window(4)(x)),
        torch.ones(2, LENGTH, dtype=torch.int64),
    ),
    "entries of a small table": lambda: joint_of(
        Attention(lambda x, table: table[(positions(x)[0] - positions(x)[1]).clamp(0, 3)]),
        torch.randn(4, dtype=DTYPE),
    ),
    "queries as columns": lambda: joint_of(Attention(lambda x: (positions(x)[0] <= positions(x)[1]).mT)),
    "joined parts": lambda: joint_of(
        Attention(lambda x: torch.cat([positions(x)[0] > 3, positions(x)[0] - positions(x)[1][:, 1:] < 7], -1))
    ),
}


@pytest.mark.parametrize("name", slow_but(FOUND, fast={"a window", "padding", "a triangle"}))
def test_masks_that_are_made_entry_by_entry(name):
    joint = FOUND[name]()
    assert len(joint.regions) == 1 and not joint.refused
    assert joint.error(3) < CLOSE


def test_sums_that_torch_says_to_be_shorter_than_they_are():
    """As 2.11 does, of queries in float64: put together in float32, they would not be what the backward reads."""
    joint = joint_of(Attention(window(5)))
    (call,) = (node for node in joint.graph.graph.nodes if node.name == "_scaled_dot_product_flash_attention_for_cpu")
    out, sums = call.meta["val"]
    call.meta["val"] = (out.double(), sums.float())
    assert not joint.regions
    assert [refused.reason.partition(" makes ")[2] for refused in joint.refused] == [
        "its sums in torch.float64, and this torch says that they are torch.float32"
    ]


def given(x, mask):
    return mask


SQUARE = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
REFUSED = {
    "a mask that is given": (given, SQUARE, "is given, and has an entry for each query and key"),
    "counted along the queries": (
        lambda x, real: (positions(x)[1] <= positions(x)[0]).long().cumsum(0) < real[:, None],
        torch.arange(LENGTH),
        "cumsum does not make a mask entry by entry",
    ),
    "the queries of a longer mask": (
        lambda x, real: (torch.arange(x.shape[1]) <= real[:, None])[: x.shape[1]],
        torch.arange(40),
        "slice takes a part of the queries",
    ),
    "read across": (
        lambda x, real: (m := positions(x)[1] <= positions(x)[0] - real[0]) | m.mT,
        torch.arange(LENGTH),
        "reads le along other queries than others do",
    ),
    "queries of several dimensions": (
        lambda x, real: (torch.arange(x.shape[1]) <= real[:, :, None]).view(x.shape[1], x.shape[1]),
        torch.arange(LENGTH).view(4, 6),
        "view makes one dimension of several",
    ),
    "drawn": (lambda x, real: torch.rand(LENGTH, LENGTH) < real, torch.rand(LENGTH), "does not make a mask entry by"),
    "picked from a large table": (
        lambda x, table: table[positions(x)[0], positions(x)[1]],
        SQUARE,
        "index picks from primals_2, which is as large as the mask",
    ),
    "queries that are padded": (
        lambda x, real: F.pad((positions(x)[1] <= real[:, None]), (0, 0, 0, 4)),
        torch.arange(LENGTH - 4),
        "constant_pad_nd adds queries",
    ),
}


@pytest.mark.parametrize("name", slow_but(REFUSED, fast={"a mask that is given", "drawn", "read across"}))
def test_masks_that_mix_queries_are_refused(name):
    make, more, reason = REFUSED[name]
    joint = joint_of(Attention(make), more)
    assert not joint.regions
    (refused,) = joint.refused
    assert reason in refused.reason


def edited(edit) -> Joint:
    """A graph with one call of attention, of which both sides were changed."""
    joint = joint_of(Attention(window(5)))
    copy = compat.copy_graph(joint.graph)
    for node in copy.graph.nodes:
        if "attention" in str(node.target):
            edit(node)
    return Joint(copy, joint.data)


def dropping(node):
    back = "backward" in str(node.target)
    node.args = (*node.args[:6], 0.1, False) if back else (*node.args[:3], 0.1)


def causal(node):
    back = "backward" in str(node.target)
    node.args = (*node.args[:6], 0.0, True) if back else (*node.args[:3], 0.0, True)


def another_kernel(node):
    if "backward" not in str(node.target):
        node.target = aten._scaled_dot_product_fused_attention_overrideable.default
        node.kwargs = {"attn_bias": node.kwargs["attn_mask"]}


@pytest.mark.parametrize(
    "edit, reason",
    [
        (dropping, "which ones depends on their place in the whole"),
        (causal, "is told that it is causal beside its mask"),
        (another_kernel, "_overrideable is not known to run a part of its queries"),
    ],
)
def test_calls_that_do_more_are_refused(edit, reason):
    (refused,) = edited(edit).refused
    assert reason in refused.reason


def test_attention_of_a_value_among_itself_is_refused():
    def attend(m, x):
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        query, key = positions(x)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=key <= query).square().mean()

    (refused,) = joint_of(Of(attend)).refused
    assert "both by queries and whole" in refused.reason


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_attention_without_a_mask_of_queries_and_keys_is_no_region(options):
    joint = joint_of(Attention(lambda x: None, **options))
    assert not joint.regions and not joint.refused
    if not options:
        joint = joint_of(Attention(lambda x, real: real.bool()[:, None, None, :]), torch.ones(2, LENGTH))
        assert not joint.regions and not joint.refused


def test_a_learned_mask_is_no_region():
    """On the CPU its attention is taken apart, so there is no call of a kernel."""

    class Learned(Attention):
        def __init__(self):
            super().__init__(lambda x: self.bias.expand(x.shape[1], -1, -1)[:, 0])
            self.bias = nn.Parameter(torch.zeros(1, 1, LENGTH))

    assert find_attention(joint_of(Learned()).graph) == ((), ())
