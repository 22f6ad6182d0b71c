"""Masks of random numbers, found in a graph."""

import torch
from torch import fx
from torch._inductor import inductor_prims

from memgraph.facts.drawn_masks import drawn_masks

aten, prims = torch.ops.aten, torch.ops.prims


def test_a_mask_is_made_of_random_numbers_alone_and_is_smaller():
    graph = fx.Graph()

    def call(target, *args, dtype, size=(4, 8)):
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(size, dtype=dtype, device="meta")
        return node

    seeds, x = graph.placeholder("seeds"), graph.placeholder("x")
    seed = call(inductor_prims.lookup_seed, seeds, 0, dtype=torch.int64, size=())
    random = call(inductor_prims.random, [4, 8], seed, "rand", dtype=torch.float32)
    mask = call(aten.gt.Scalar, random, 0.1, dtype=torch.bool)
    call(aten.mul.Tensor, random, 2.0, dtype=torch.float32)  # no smaller
    call(aten.gt.Tensor, random, x, dtype=torch.bool)  # not of random numbers alone
    call(aten.gt.Scalar, x, 0.1, dtype=torch.bool)
    half = call(prims.convert_element_type.default, random, torch.bfloat16, dtype=torch.bfloat16)
    from_half = call(aten.gt.Scalar, half, 0.1, dtype=torch.bool)
    twice = call(aten.mul.Tensor, random, 2.0, dtype=torch.float32)
    from_twice = call(aten.gt.Scalar, twice, 0.1, dtype=torch.bool)
    call(aten.sum.default, half, dtype=torch.bfloat16, size=())
    assert drawn_masks(graph.nodes) == {mask, half, from_half, from_twice}
