"""Which nodes of a graph, and which calls of Inductor's wrapper, are kernels with scratch of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.kernel_scratch import cuda
from memgraph.facts.kernel_scratch.known import current
from memgraph.facts.kernel_scratch.operands import Operand, described
from memgraph.facts.kernel_scratch.rules import RULES
from memgraph.facts.operators import family, qualified_name
from memgraph.runtime import tile_ops

# Operators without a kernel of ATen's: memgraph's own, whose scratch the runtime knows, Inductor's, which write in
# place, and those that run a body.
_NONE = ("memgraph::", "inductor::", "higher_order::")
# The operands of a convolution that Inductor lays out anew, the first of its arguments.
_CONVOLUTIONS = {"aten::convolution": 2, "aten::convolution_backward": 3}


def of_operator(
    op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any, device: str
) -> int:
    """Bytes that a call in Inductor's wrapper holds beyond its outputs; arguments as those of Kernels.bytes_of."""
    name = qualified_name(op)
    if name in ("memgraph::shard_product", "memgraph::shard_add_"):
        return _shards(*map(described, args[-2:]), on_cuda=device == "cuda")
    if name == "memgraph::shard_sum_":
        return _sum(args[1], on_cuda=device == "cuda")
    if name.startswith(_NONE):
        return 0
    return current().bytes_of(op, args, kwargs, outputs, device)


def has_rule(op: Callable[..., Any], device: str) -> bool:
    """Whether a rule tells the scratch of an operator's kernel on `device` ("cpu" or "cuda"), exactly or at most."""
    return qualified_name(op) in (RULES if device == "cpu" else cuda.RULES)


def of_node(node: fx.Node, device: str) -> int:
    """Bytes that a node's operator holds beyond its outputs on `device`; 0 if Inductor makes the kernel itself."""
    name = qualified_name(node.target) if node.op == "call_function" else ""
    if name in ("memgraph::shard_product", "memgraph::shard_add"):
        return _shards(*map(described, node.args[-2:]), on_cuda=device == "cuda")
    if name == "memgraph::shard_sum":
        return _sum(described(node.args[1]), on_cuda=device == "cuda")
    if not is_called(node, device):
        return 0
    args, copies = node.args, 0
    if device == "cpu" and name in _CONVOLUTIONS:
        args, copies = _as_laid_out(args, _CONVOLUTIONS[name])
    return current().bytes_of(node.target, args, node.kwargs, node, device) + copies


def is_called(node: fx.Node, device: str) -> bool:
    """Whether a node's operator is a kernel of torch's, which Inductor calls by itself."""
    name = qualified_name(node.target) if node.op == "call_function" else ""
    if not name or name.startswith(_NONE) or family(node.target) != "extern":
        return False
    return has_rule(node.target, device) or compat.falls_back(node.target)


def _as_laid_out(args: Sequence[Any], operands: int) -> tuple[Sequence[Any], int]:
    """The arguments of a convolution as Inductor hands them to its kernel on the CPU, and the bytes of a copy for that.

    Its 2-d convolutions are channels last. torch 2.13 orders what a backward reads by the strides of the weight, and
    those of a depthwise one, with a single channel to a filter, say little: the gradient is contiguous then, and the
    image a copy with its rows fastest, its channels next (torch/_inductor/kernel/conv.py, conv_bwd_weight_layout).
    """
    laid_out = [described(arg) for arg in args[:operands]]
    if len(laid_out[1].size) != 4:
        return args, 0
    if operands == 3 and laid_out[2].size[1] == 1 and compat.depthwise_backward_copies():
        gradient, image, weight = laid_out
        last = tuple(reversed(range(4)))
        return (gradient.laid_out(last), image.laid_out((3, 1, 2, 0)), weight.laid_out(last), *args[3:]), image.nbytes
    return (*(operand.channels_last() for operand in laid_out), *args[operands:]), 0


def _sum(part: Operand, *, on_cuda: bool) -> int:
    return tile_ops.sum_scratch(part.size, part.dtype, on_cuda)


def _shards(left: Operand, right: Operand, *, on_cuda: bool) -> int:
    """A shard's product, or one that is added to a sum: on CUDA both are cuBLAS'."""
    if not on_cuda:
        return tile_ops.scratch(left.size, right.size, left.dtype)
    product = Operand((left.size[0], right.size[1]), (right.size[1], 1), left.dtype)
    return current().bytes_of(torch.ops.aten.mm.default, (left, right), {}, product, "cuda")
