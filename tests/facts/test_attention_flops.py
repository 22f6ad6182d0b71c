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
