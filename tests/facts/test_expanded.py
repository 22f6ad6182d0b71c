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


def test_labels_are_read_for_every_word():
    graph = fx.Graph()

    def call(target, *args, size):
        node = graph.call_function(target, args)
        value = torch.empty(size, device="meta", dtype=torch.int64)
        node.meta["val"] = args[0].meta["val"].expand(size) if target is aten.expand.default else value
        return node

    found = {}
    for words in (1 << 14, (1 << 14) - 1):
        ids = graph.placeholder(f"ids_{words}")
        ids.meta["val"] = torch.empty(8, 1, device="meta")
        found[words] = call(aten.add.Tensor, ids, 1, size=(8, 1))
        shown = call(aten.expand.default, found[words], (8, words), size=(8, words))
        places = graph.placeholder(f"places_{words}")
        call(aten.eq.Tensor, shown, places, size=(8, words))
        call(aten.mul.Tensor, found[words], 2, size=(8, 1))  # no larger
        weight = call(aten.add.Tensor, places, 1, size=(words,))  # for every row
        one = call(aten.add.Tensor, places, 1, size=(1, 1))  # a constant
        for value in (weight, one):
            call(aten.mul.Tensor, value, places, size=(words, words))
    assert read_expanded(graph.nodes) == {found[1 << 14]}
