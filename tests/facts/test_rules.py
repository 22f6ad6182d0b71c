"""The rules of the token flow as data: one table, keyed by operators with their namespace."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from memgraph.facts.operators import family, qualified_name, short_name
from memgraph.facts.tokens import border, kinds
from memgraph.facts.tokens.linear import LINEAR, linear
from memgraph.facts.tokens.rules import RULES, merged, rule_of
from memgraph.facts.tokens.states import MixesTokens

aten = torch.ops.aten
_library = torch.library.Library("lookalike", "DEF")
for _name in ("mul", "view", "embedding", "fused_attention", "fft", "random_gate", "grouped_mm", "sort"):
    _library.define(f"{_name}(Tensor x, Tensor y) -> Tensor")
NAMESAKES = ("mul", "view", "embedding", "fused_attention", "fft", "random_gate", "grouped_mm", "sort")


def call_of(target) -> fx.Node:
    graph = fx.Graph()
    reads = [graph.placeholder(name) for name in ("x", "y")]
    node = graph.call_function(target, tuple(reads))
    for item in (*reads, node):
        item.meta["val"] = torch.empty(4, 4, device="meta")
    return node


@pytest.mark.parametrize("name", NAMESAKES)
def test_an_operator_of_the_users_is_nothing_but_itself(name):
    """Neither by its whole name nor by a part of it: nobody knows what it does."""
    node = call_of(getattr(torch.ops.lookalike, name).default)
    with pytest.raises(MixesTokens, match=f"lookalike::{name} has no rule for how tokens pass through it"):
        rule_of(node)
    assert family(node.target) == "extern"
    assert not border.is_drawn(node)
    assert not linear(node, {node.args[0]})


def test_an_operator_has_one_rule():
    with pytest.raises(ValueError, match="aten::mul has two rules"):
        merged([{aten.mul: len}, {aten.add: len}, {"aten::mul": len}])
    assert list(merged([{aten.mul: len}, {"lookalike::mul": len}])) == ["aten::mul", "lookalike::mul"]


def test_tables_know_operators_by_their_namespace():
    names = [key for key in RULES if isinstance(key, str)]
    assert len(names) == len(RULES) - 1  # getitem is python's
    for name in (*names, *LINEAR, *kinds.SIZED, *kinds.MAKERS, *kinds.PRODUCTS, *kinds.MIXERS, *kinds.SAME_SHAPE):
        assert "::" in name
    assert all(short_name(getattr(aten, name)) == name for name in ("mm", "view", "_softmax"))


@pytest.mark.parametrize(
    "target, name",
    [
        (aten.mul, "aten::mul"),
        (aten.mul.Tensor, "aten::mul"),
        (aten.mul.Scalar, "aten::mul"),
        (torch.ops.prims.iota.default, "prims::iota"),
        (torch.ops.lookalike.mul.default, "lookalike::mul"),
        (torch.ops.higher_order.cond, "higher_order::cond"),
        ("aten::mul", "aten::mul"),
        (len, ""),
    ],
    ids=str,
)
def test_qualified_names(target, name):
    assert qualified_name(target) == name


@pytest.mark.parametrize(
    "target",
    [aten._scaled_dot_product_flash_attention_for_cpu.default, aten.convolution.default, aten._fft_r2c.default],
)
def test_what_mixes_tokens_is_known_by_name(target):
    with pytest.raises(MixesTokens, match=f"{short_name(target)} mixes tokens"):
        rule_of(call_of(target))
