"""What attention with a body of the user's costs: without a formula it would be priced by its traffic alone."""

import torch
from torch import fx

from memgraph.base.compat import HigherOrderOperator, fake_evaluation
from memgraph.facts.costs import flops


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
