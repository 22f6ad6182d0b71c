"""What Inductor copies into another layout, since it computes 2-d convolutions channels last.

Inputs, as a forward begins, for itself and for the backward:

    forward   weight [out, in, 3, 3] ──copied──> channels last ──> convolution
                                                     └───────────> saved, in place of the weight

It does so on the CPU, and for some models on CUDA. What the backward reads of their operands it saves in that layout:
so the copies of the weights stand until the backward has read them (torch/_inductor/graph.py, decide_layout_opt and
run_node: 2.11, 2.13, 2.15).

And, on the CPU, gradients in the groups of a norm, of which convolutions read a view:

    sum [1, 8, 4, 256]  ──view──> [1, 32, 16, 16]  ──copied──> channels last ──> one convolution, or two

Where the view has several readers, as where a residual block begins, or (2.13) where the backward computes a
convolution again, the sum is written as it is first, and copied then. A plan has it written once, in such an order that
its view is channels last (passes/settle.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import family
from memgraph.facts.views import is_view


def copied_inputs(joint: fx.GraphModule, stock_forward: fx.GraphModule) -> frozenset[fx.Node]:
    """The inputs of a joint graph that are copied, if its backward reads them.  stock_forward: of Inductor's split."""
    convolutions = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    if not convolutions or not compat.prefers_channels_last(stock_forward):
        return frozenset()
    operands = {operand for convolution in convolutions for operand in convolution.args[:2]}
    return frozenset(node for node in operands if node.op == "placeholder" and _is_laid_out_anew(node.meta.get("val")))


def read_channels_last(nodes: Iterable[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The pointwise values of which the backward of a convolution on the CPU reads a view, as its gradient.

    All of them, and those whose view has several readers.
    """
    found = {node: _views(node) for node in nodes if _is_pointwise_on_cpu(node)}
    return {node for node, views in found.items() if views}, {
        node for node, views in found.items() if any(len(view.users) > 1 for view in views)
    }


def _is_pointwise_on_cpu(node: fx.Node) -> bool:
    val = node.meta.get("val")
    on_cpu = isinstance(val, torch.Tensor) and val.device.type == "cpu"
    return on_cpu and node.op == "call_function" and family(node.target) == "pointwise"


def _views(node: fx.Node) -> list[fx.Node]:
    """The views of a node that a convolution's backward reads as its gradient, and that are not channels last."""
    found = []
    for view in node.users:
        if not is_view(view) or view.target is torch.ops.aten.slice.Tensor:  # read as it lies: not copied
            continue
        backward = torch.ops.aten.convolution_backward.default
        if any(user.target is backward and user.args[0] is view for user in view.users):
            found += [view] if _is_laid_out_anew(view.meta.get("val")) else []
        found += _views(view)
    return found


def _is_laid_out_anew(val: object) -> bool:
    """Whether a value is an image, or the weight of a 2-d convolution, whose channels do not come last in memory."""
    if not isinstance(val, torch.Tensor) or val.dim() != 4 or val.layout is not torch.strided:
        return False
    _, channels, rows, columns = map(compat.size_hint, val.shape)
    wanted = (channels * rows * columns, 1, columns * channels, channels)
    steps = zip(val.shape, map(compat.size_hint, val.stride()), wanted, strict=True)
    return any(compat.size_hint(size) > 1 and stride != step for size, stride, step in steps)
