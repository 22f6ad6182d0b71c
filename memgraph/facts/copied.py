"""Inputs that Inductor copies into another layout as a forward begins, for itself and for the backward.

    forward   weight [out, in, 3, 3] ──copied──> channels last ──> convolution
                                                     └───────────> saved, in place of the weight

On the CPU, and for some models on CUDA, it computes 2-d convolutions channels last. What the backward reads of their
operands it saves in that layout: so the copies of the weights stand until the backward has read them
(torch/_inductor/graph.py, decide_layout_opt and run_node: 2.11, 2.13, 2.15).
"""

from __future__ import annotations

import torch
from torch import fx

from memgraph.base import compat


def copied_inputs(joint: fx.GraphModule, stock_forward: fx.GraphModule) -> frozenset[fx.Node]:
    """The inputs of a joint graph that are copied, if its backward reads them.  stock_forward: of Inductor's split."""
    convolutions = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    if not convolutions or not compat.prefers_channels_last(stock_forward):
        return frozenset()
    operands = {operand for convolution in convolutions for operand in convolution.args[:2]}
    return frozenset(node for node in operands if node.op == "placeholder" and _is_laid_out_anew(node.meta.get("val")))


def _is_laid_out_anew(val: object) -> bool:
    """Whether a value is an image, or the weight of a 2-d convolution, whose channels do not come last in memory."""
    if not isinstance(val, torch.Tensor) or val.dim() != 4 or val.layout is not torch.strided:
        return False
    _, channels, rows, columns = map(compat.size_hint, val.shape)
    wanted = (channels * rows * columns, 1, columns * channels, channels)
    steps = zip(val.shape, map(compat.size_hint, val.stride()), wanted, strict=True)
    return any(compat.size_hint(size) > 1 and stride != step for size, stride, step in steps)
