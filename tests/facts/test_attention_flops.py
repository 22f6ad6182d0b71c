"""What attention costs: with a body of the user's, of which torch has no formula; where each query sees some keys."""

import dataclasses

import pytest
import torch
from torch import fx

from memgraph.base.compat import HigherOrderOperator, fake_evaluation
from memgraph.facts.costs import flops, seconds
from memgraph.machine.hardware import built_in


def test_flex_attention_costs_its_products():
    operator = torch.ops.higher_order.flex_attention
    assert isinstance(operator, HigherOrderOperator)
    graph = fx.Graph()
    with fake_evaluation():
        values = [torch.empty(2, 4, 512, 64) for _ in range(3)]
    nodes = [graph.placeholder(name) for name in ("query", "key", "value")]
    for node, value in zip(nodes, values, strict=True):
        node.meta["val"] = value
    call = graph.call_function(operator, (*nodes, graph.get_attr("score_mod"), (), 0.125, {}))
    product = 2 * (2 * 4) * 512 * 512 * 64  # 2 FLOPs an entry
    assert flops(call) == 2 * product
    backward = torch.ops.higher_order.flex_attention_backward
    assert flops(graph.call_function(backward, (*nodes, *nodes))) == 5 * product


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (48, 64), (64, 48), (1, 64)])
@pytest.mark.parametrize("given", ["by place", "by name"])
def test_causal_attention_costs_the_pairs_that_it_looks_at(queries, keys, given):
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("query", "key", "value")]
    with fake_evaluation():
        for node, length in zip(nodes, (queries, keys, keys), strict=True):
            node.meta["val"] = torch.empty(2, 4, length, 64)
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    whole = flops(graph.call_function(operator, tuple(nodes)))
    told = (0.0, True) if given == "by place" else ()
    causal = graph.call_function(operator, (*nodes, *told), {"is_causal": True} if not told else {})
    seen = int(torch.ones(queries, keys, dtype=torch.bool).tril().sum())
    assert whole == 4 * 2 * 4 * queries * keys * 64
    assert flops(causal) == whole * seen // (queries * keys)


def test_the_backward_of_causal_attention_costs_as_much_less():
    graph = fx.Graph()
    query, key, value, given = (graph.placeholder(name) for name in ("query", "key", "value", "grad_out"))
    with fake_evaluation():
        for node in (query, key, value, given):
            node.meta["val"] = torch.empty(2, 4, 64, 64)
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    whole, causal = (
        flops(graph.call_function(operator, (given, query, key, value, value, query, 0.0, causal)))
        for causal in (False, True)
    )
    assert causal == whole * 65 // 128


def test_attention_is_priced_by_its_own_rate():
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("query", "key", "value")]
    with fake_evaluation():
        value = torch.empty(1, 4, 512, 64)
    for node in nodes:
        node.meta["val"] = value
    call = graph.call_function(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, tuple(nodes))
    call.meta["val"] = (value, value)
    machine = dataclasses.replace(built_in("cpu"), memory_bandwidth=1e15, kernel_overhead=1e-12)
    slower = dataclasses.replace(machine, attention=(("float32", machine.rate("float32") / 4),))
    assert seconds(call, slower) == pytest.approx(4 * seconds(call, machine))


_CPU = "_scaled_dot_product_flash_attention_for_cpu"
CALLS = {
    "causal": (_CPU, 3, {"is_causal": True}, 1),
    "masked": (_CPU, 3, {"attn_mask": True}, 2),
    "whole": (_CPU, 3, {}, 4),
    "causal, backward": (f"{_CPU}_backward", 6, (0.0, True), 1),
    "masked, backward": (f"{_CPU}_backward", 6, {"dropout_p": 0.0, "is_causal": False, "attn_mask": True}, 2),
    "a card's, with a mask": ("_scaled_dot_product_efficient_attention", 3, (True, True), 2),
    "a card's, without one": ("_scaled_dot_product_efficient_attention", 3, (None, True), 4),
    "a card's that takes none": ("_scaled_dot_product_flash_attention", 3, {}, 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_kind_of_attention_is_priced_by_its_own_rate(name):
    """Of as many operations: by 1, 2 and 4 GFLOP/s for causal calls, those with a mask, and those to all keys."""
    target, tensors, more, gigaflops = CALLS[name]
    graph = fx.Graph()
    with fake_evaluation():
        value, square = torch.empty(1, 4, 512, 64), torch.empty(1, 1, 512, 512)
    nodes = [graph.placeholder(f"given_{place}") for place in range(tensors)]
    mask = graph.placeholder("mask")
    for node in nodes:
        node.meta["val"] = value
    mask.meta["val"] = square
    given = more if isinstance(more, tuple) else ()
    given = tuple(mask if place == 0 and item is True else item for place, item in enumerate(given))
    named = {key: mask if key == "attn_mask" else item for key, item in more.items()} if given == () else {}
    call = graph.call_function(getattr(torch.ops.aten, target).default, (*nodes, *given), named)
    call.meta["val"] = (value, value)
    machine = dataclasses.replace(
        built_in("cpu"),
        memory_bandwidth=1e15,
        kernel_overhead=1e-12,
        attention=(("float32", 1e9),),
        masked_attention=(("float32", 2e9),),
        whole_attention=(("float32", 4e9),),
    )
    assert seconds(call, machine) == pytest.approx(flops(call) / 1e9 / gigaflops)
