"""Masks of random numbers, found in a graph."""

import torch
from torch import fx
from torch._inductor import inductor_prims

from memgraph.facts.drawn_masks import drawn_masks, read_in_larger_kernels

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


def test_masks_that_are_read_in_larger_kernels():
    graph = fx.Graph()

    def call(target, *args, size):
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(size, device="meta")
        return node

    def mask():
        return call(aten.gt.Scalar, x, 0.1, size=(4, 8))

    x = graph.placeholder("x")
    padded, broadcast, summed, product, alone = (mask() for _ in range(5))
    call(aten.constant_pad_nd.default, call(aten.mul.Tensor, padded, x, size=(4, 8)), [0, 1], size=(4, 9))
    call(aten.mul.Tensor, broadcast, x, size=(2, 4, 8))
    kept = call(aten.mul.Tensor, summed, x, size=(4, 8))
    call(aten.mul.Tensor, call(aten.sum.dim_IntList, kept, [1], True, size=(4, 1)), x, size=(4, 8))
    call(aten.mm.default, product, x, size=(4, 90))  # it reads what is in memory
    call(aten.mul.Tensor, alone, x, size=(4, 8))
    found = read_in_larger_kernels([padded, broadcast, summed, product, alone])
    assert found == {padded, broadcast}
