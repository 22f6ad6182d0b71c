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
_CONVOLUTION = "aten::convolution"


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
    if not name or name.startswith(_NONE) or family(node.target) != "extern":
        return 0
    if not has_rule(node.target, device) and not compat.falls_back(node.target):
        return 0
    args = list(node.args)
    if device == "cpu" and name == _CONVOLUTION and len(described(args[1]).size) > 3:  # as Inductor lays them out there
        args[:2] = [described(arg).channels_last() for arg in args[:2]]
    return current().bytes_of(node.target, args, node.kwargs, node, device)


def _sum(part: Operand, *, on_cuda: bool) -> int:
    return tile_ops.sum_scratch(part.size, part.dtype, on_cuda)


def _shards(left: Operand, right: Operand, *, on_cuda: bool) -> int:
    """A shard's product, or one that is added to a sum: on CUDA both are cuBLAS'."""
    if not on_cuda:
        return tile_ops.scratch(left.size, right.size, left.dtype)
    product = Operand((left.size[0], right.size[1]), (right.size[1], 1), left.dtype)
    return current().bytes_of(torch.ops.aten.mm.default, (left, right), {}, product, "cuda")
