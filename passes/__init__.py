"""Rewrites of the graph, one a file. A pass realises a plan and never decides.

A pass is a function (graphs, plan) -> Rewritten(graphs, modified, notes): see `graphs.py`. The tuples below list all
passes, in the order in which `memgraph.backend.rewriting` runs them; it verifies the graphs after each.
"""

from memgraph.passes import (
    apart,
    drop_logits,
    kernel_ends,
    masks,
    offload,
    outline,
    partition,
    read_operands,
    recompute,
    settle,
    slice_before_head,
    tile,
)
from memgraph.passes.graphs import Pass

BEFORE_AUTOGRAD: tuple[Pass, ...] = (
    masks.masks,
    drop_logits.drop_logits,
    slice_before_head.slice_before_head,
)
JOINT: tuple[Pass, ...] = (read_operands.read_operands, apart.apart, tile.tile)
SPLIT: tuple[Pass, ...] = (
    partition.partition,
    recompute.recompute,
    settle.settle,
    offload.offload,
    kernel_ends.kernel_ends,
)
LOWERED: tuple[Pass, ...] = (outline.outline,)
