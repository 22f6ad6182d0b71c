"""Attention that lost its mask: the verifier says where it should have kept it, whoever took it away."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from memgraph.base.errors import VerifyError
from memgraph.passes.graphs import EarlyPlan
from memgraph.passes.masks import masks
from memgraph.verify.masks import MaskError, verify_masks
from memgraph.verify.sampled import PLACES, WHOLE, Sampler
from tests.facts.test_masks import CAUSAL, OTHER, transformers_mask
from tests.support.lanes import slow_but
from tests.support.masks import attending, captured, queries

LONG = 5000
assert LONG**2 > WHOLE


def without_mask(make, length=None, dynamic=None, **options):
    """Graphs before and after every call was told to be causal, whether it is so or not."""
    q = queries(7, 1, 2) if length is None else torch.empty(2, 1, length, 4)
    before = captured(attending(make, **options), q, dynamic=dynamic)
    (call,) = before.module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    return before.module, masks(before, EarlyPlan(causal=(call.name,))).graphs.module


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_may_go(name):
    verify_masks(*without_mask(CAUSAL[name]))


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"data", "padding", "drawn", "one head of two", "parity"}))
def test_another_mask_may_not(name):
    with pytest.raises(VerifyError, match="not the causal one"):
        verify_masks(*without_mask(OTHER[name][0]))


@pytest.mark.parametrize("name", ["data", "padding"])
def test_a_mask_of_data_cannot_be_tried(name):
    with pytest.raises(MaskError, match="reads data"):
        verify_masks(*without_mask(OTHER[name][0]))


def positions(q):
    return torch.arange(q.shape[2])


LARGE = {
    "comparison": lambda q: positions(q)[:, None] >= positions(q),
    "tril": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(),
    "added": lambda q: torch.full((q.shape[2], q.shape[2]), float("-inf")).triu(1),
    "filled": lambda q: torch.zeros(q.shape[2], q.shape[2]).masked_fill(
        positions(q)[:, None] < positions(q), -torch.inf
    ),
    "repeated": lambda q: (positions(q)[:, None] >= positions(q)).repeat(q.shape[0], 1, 1, 1),
    "columns repeated": lambda q: positions(q)[:, None].repeat(1, q.shape[2]) >= positions(q),
    "transformers": transformers_mask,
}
LARGE_OTHER = {
    "a window": lambda q: transformers_mask(q, window=4000),
    "almost all": lambda q: transformers_mask(q, window=LONG - 1),
    "next key": lambda q: positions(q)[:, None] + 1 >= positions(q),
    "tril": lambda q: torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1),
    "prefix": lambda q: (positions(q)[:, None] >= positions(q)) | (positions(q) < 1000),
    "packed": lambda q: (
        (positions(q)[:, None] >= positions(q)) & ((positions(q)[:, None] >= 999) == (positions(q) >= 999))
    ),
    "finite": lambda q: torch.zeros(q.shape[2], q.shape[2]).masked_fill(positions(q)[:, None] < positions(q), -1e4),
}


@pytest.mark.parametrize("name", slow_but(LARGE, fast=list(LARGE)[:2]))
def test_a_large_mask_is_looked_at_in_some_places(name):
    verify_masks(*without_mask(LARGE[name], LONG))


@pytest.mark.parametrize("name", slow_but(LARGE_OTHER, fast=list(LARGE_OTHER)[:2]))
def test_what_is_wrong_in_a_large_mask_is_seen(name):
    with pytest.raises(VerifyError, match="not the causal one"):
        verify_masks(*without_mask(LARGE_OTHER[name], LONG))


def test_a_mask_for_each_of_many_heads():
    def make(q):
        return (positions(q)[:, None] >= positions(q)).expand(*q.shape[:3], q.shape[2])

    before = captured(attending(make), torch.empty(1, PLACES + 2, 5, 4))
    (call,) = before.module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    verify_masks(before.module, masks(before, EarlyPlan(causal=(call.name,))).graphs.module)


def test_a_large_mask_of_other_operators_cannot_be_tried():
    with pytest.raises(MaskError, match="not known to work place by place"):
        verify_masks(*without_mask(lambda q: (positions(q)[:, None] >= positions(q)).flip(0).flip(0), LONG))


def test_symbolic_lengths_are_tried_with_numbers():
    verify_masks(*without_mask(LARGE["transformers"], dynamic=2))
    with pytest.raises(VerifyError, match="not the causal one"):  # at the length of the capture it is causal
        verify_masks(*without_mask(CAUSAL["window of all"], dynamic=2))


def changed(change):
    before, after = without_mask(LARGE["comparison"], dropout_p=0.25)
    (call,) = after.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    change(after.graph, call)
    return before, after


def set_to(name, value):
    return lambda graph, call: setattr(call, "kwargs", {**call.kwargs, name: value})


def another_query(graph, call):
    with graph.inserting_before(call):
        call.args = (graph.call_function(torch.neg, (call.args[0],)), *call.args[1:])


def another_operator(graph, call):
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((next(iter(graph.nodes)),),)


@pytest.mark.parametrize(
    "change, breach",
    [
        (set_to("dropout_p", 0.5), "another dropout_p"),
        (set_to("scale", 2.0), "another scale"),
        (set_to("is_causal", False), "not told to be causal"),
        (another_query, "another query"),
        (another_operator, "output is another operator"),
    ],
)
def test_nothing_else_may_change(change, breach):
    with pytest.raises(VerifyError, match=breach):
        verify_masks(*changed(change))


def test_places_are_at_the_ends_and_around_numbers_of_the_graph():
    places = Sampler({1000}).places(LONG).tolist()
    assert places == sorted(set(places)) and len(places) <= PLACES
    assert {0, LONG - 1} <= set(places) and any(abs(place - 1000) <= 2 for place in places)
    assert Sampler(()).places(PLACES).tolist() == list(range(PLACES))
