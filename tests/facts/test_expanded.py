"""Values that an operator reads in a larger size, found in a graph."""

import torch
from torch import fx

from memgraph.facts.expanded import read_expanded

aten = torch.ops.aten


def test_a_mask_that_all_heads_share_is_read_in_a_larger_size():
    graph = fx.Graph()

    def call(target, *args, size):
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(size, device="meta")
        return node

    x = graph.placeholder("x")
    query = graph.placeholder("query")

    def mask(view, *args, size):
        made = call(aten.mul.Tensor, x, 2.0, size=(1, 1, 8, 8))
        shown = call(view, made, *args, size=size)
        return made, call(aten.slice.Tensor, shown, 0, 0, 1, size=size)

    heads = (1, 4, 8, 8)
    expanded, every = mask(aten.expand.default, heads, size=heads)
    call(aten._scaled_dot_product_flash_attention_for_cpu.default, query, query, query, every, size=heads)
    _, same = mask(aten.view.default, [8, 8], size=(8, 8))  # no larger
    call(aten.mm.default, same, query, size=(8, 8))
    _, fused = mask(aten.expand.default, heads, size=heads)  # read by what fuses
    call(aten.add.Tensor, fused, 1.0, size=heads)
    product = call(aten.mm.default, x, x, size=(8, 8))  # written anyway
    call(aten.bmm.default, call(aten.expand.default, product, (4, 8, 8), size=(4, 8, 8)), query, size=(4, 8, 8))
    assert read_expanded(graph.nodes) == {expanded}
