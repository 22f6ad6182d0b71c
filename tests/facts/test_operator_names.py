"""Operators with the names of aten's, in a namespace of their own: nothing that is known of aten's is known of them."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from memgraph.facts.costs import seconds
from memgraph.facts.operators import draws, family, short_name
from memgraph.facts.tokens.linear import linear
from memgraph.facts.tokens.rules import rule_of
from memgraph.facts.tokens.states import MixesTokens
from memgraph.machine.hardware import built_in
from tests.support.graphs import why_fixed

_library = torch.library.Library("namesake", "DEF")
for _schema in ("mul(Tensor a, Tensor b) -> Tensor", "view(Tensor a, int[] size) -> Tensor", "exp(Tensor a) -> Tensor",
                "embedding(Tensor weight, Tensor ids) -> Tensor", "mm(Tensor a, Tensor b) -> Tensor",
                "full(int[] size, float value) -> Tensor"):  # fmt: skip
    _library.define(_schema)


def call_of(target, *shapes: list[int], rest: tuple = ()) -> fx.Node:
    graph = fx.Graph()
    reads = [graph.placeholder(f"x{n}") for n in range(len(shapes))]
    for read, shape in zip(reads, shapes, strict=True):
        read.meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(target, (*reads, *rest))
    node.meta["val"] = torch.empty([4, 4], device="meta")
    return node


@pytest.mark.parametrize("name, shapes, rest", [
    ("mul", ([4, 4], [4, 4]), ()), ("view", ([16],), ([4, 4],)), ("exp", ([4, 4],), ()),
    ("embedding", ([4, 4], [4]), ()), ("mm", ([4, 4], [4, 4]), ()),
])  # fmt: skip
def test_namesakes_of_atens_operators_are_not_taken_for_them(name, shapes, rest):
    overloads = getattr(torch.ops.aten, name)
    known = call_of(overloads.Tensor if name == "mul" else overloads.default, *shapes, rest=rest)
    node = call_of(getattr(torch.ops.namesake, name).default, *shapes, rest=rest)
    assert short_name(known.target) == name and short_name(node.target) == f"namesake::{name}"
    rule_of(known)
    with pytest.raises(MixesTokens, match=f"namesake::{name} has no rule"):
        rule_of(node)
    assert family(node.target) == "extern"
    first = node.all_input_nodes[0]
    assert not linear(node, {first})
    assert linear(known, {known.all_input_nodes[0]}) == (name != "exp")
    hardware = built_in("cpu")
    traffic = sum(read.meta["val"].nbytes for read in (*node.all_input_nodes, node)) / hardware.memory_bandwidth
    assert seconds(node, hardware) == pytest.approx(traffic + hardware.kernel_overhead)
    assert why_fixed(node).startswith(f"calls namesake::{name}") and not why_fixed(known)


def test_a_namesake_of_full_is_no_zero():
    """Added to what depends on the tangent, zeros leave it linear; what some operator makes does not."""
    graph = fx.Graph()
    tangent = graph.placeholder("tangent")
    for namespace, wanted in ((torch.ops.aten, True), (torch.ops.namesake, False)):
        zeros = graph.call_function(namespace.full.default, ([4], 0.0))
        total = graph.call_function(torch.ops.aten.add.Tensor, (tangent, zeros))
        for node in (tangent, zeros, total):
            node.meta["val"] = torch.empty(4, device="meta")
        assert linear(total, {tangent}) is wanted


def test_dropout_by_zero_is_only_known_of_atens():
    assert not draws(call_of(torch.ops.aten.native_dropout.default, [4, 4], rest=(0.0, True)))
    torch.library.define("namesake::noise", "(Tensor a, float p) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    assert draws(call_of(torch.ops.namesake.noise.default, [4, 4], rest=(0.0,)))
