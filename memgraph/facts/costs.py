"""What computing a node once more would cost, in seconds.

An operator with a kernel of its own: its FLOPs (torch.utils.flop_counter's formulas) over the measured rate, or its
traffic over the memory bandwidth, whichever is longer, and the overhead of a kernel. An operator that Inductor fuses:
the traffic of its output, since the kernel that it joins reads its inputs anyway (a reduction's inputs count as well),
and its transcendental functions over their rate, its random numbers, or those that it puts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from memgraph.base import compat
from memgraph.facts.operators import argument, aten_names, family, qualified_name
from memgraph.machine.hardware import Attention, Hardware

TRANSCENDENTAL = aten_names(
    "exp expm1 exp2 log log2 log1p tanh sigmoid silu gelu erf erfc sin cos pow softplus mish "
    "tanh_backward gelu_backward silu_backward sigmoid_backward atan atan2 asin acos sinh cosh"
)

_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu", "higher_order::flex_attention")
# Operators that add numbers to entries by their places, with the argument that these numbers are.
_PUTS = {
    "aten::index_put": "values",
    "aten::_unsafe_index_put": "values",
    "aten::_unsafe_masked_index_put_accumulate": "values",
    "aten::scatter_add": "src",
    "aten::index_add": "source",
}
# Attention of [..., tokens, features]; what these call underneath has other layouts.
_BY_HEADS = "aten::_scaled_dot_product_"
# Products without a formula in torch, with the places of their two factors among the arguments: every entry of the rows
# meets every column of the weight (of one expert).
_PRODUCTS = {
    "memgraph::shard_product": (0, 1),
    "memgraph::shard_add": (1, 2),
    "aten::_grouped_mm": (0, 1),
    "transformers::grouped_mm_fallback": (0, 1),
    "transformers::grouped_mm_fallback_backward": (0, 1),
}


def storage_span(value: torch.Tensor) -> int:
    """Bytes from the first to the last element of a strided tensor (fake or real).

    Raises GraphError for a size that only data decide, as `logical_bytes` does.
    """
    sizes, strides = (tuple(map(compat.size_hint, steps)) for steps in (value.shape, value.stride()))
    return span(sizes, strides) * value.element_size()


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements in memory from the first to the last, gaps included."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def logical_bytes(value: Any) -> int:
    """Bytes of all elements, whatever the strides; a list's or tuple's are summed; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        return math.prod(compat.size_hint(size) for size in value.shape) * value.element_size()
    if isinstance(value, list | tuple):
        return sum(logical_bytes(item) for item in value)
    return 0


def _shape(item: Any) -> Any:
    """The shape of an argument, as the FLOP formulas take it; other arguments stay as they are."""
    if isinstance(item, Node):
        item = item.meta.get("val")
    if isinstance(item, torch.Tensor):
        return torch.Size([compat.size_hint(size) for size in item.shape])
    if isinstance(item, list | tuple):
        return type(item)(_shape(part) for part in item)
    return item


def flops(node: Node) -> int:
    """Floating-point operations of one node; 0 if no formula is known.

    Causal attention counts the keys that a query may see: its kernels leave out the blocks above the diagonal.
    """
    whole = _flops(node)
    causal = qualified_name(node.target).startswith(_BY_HEADS) and argument(node, "is_causal")
    return int(whole * _share_of_pairs(node)) if whole and causal else whole


def _share_of_pairs(node: Node) -> Fraction:
    """The share of the pairs of a query and a key that causal attention looks at."""
    queries, keys = (_shape(argument(node, name))[-2] for name in ("query", "key"))
    square = min(queries, keys)  # query n sees the first n + 1 keys, whichever of the two are more
    seen = square * (square + 1) // 2 + (queries - square) * keys
    return Fraction(seen, max(1, queries * keys))


def _flops(node: Node) -> int:
    name = qualified_name(node.target)
    if name.startswith(_ATTENTION):
        # torch has no formula, or newer versions alone: two products of (queries x keys x width), five in the backward.
        backward = name.endswith("backward")
        after_gradient = name.startswith("aten::") and backward
        query, key = (_shape(arg) for arg in (node.args[1:3] if after_gradient else node.args[:2]))
        batch, heads, queries, width = query
        return (10 if backward else 4) * batch * heads * queries * key[-2] * width
    if name in _PRODUCTS:
        rows, weight = (_shape(node.args[place]) for place in _PRODUCTS[name])
        return (4 if name.endswith("backward") else 2) * math.prod(rows) * weight[-1]
    formula = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if formula is None:
        return 0
    keywords = {key: _shape(arg) for key, arg in node.kwargs.items()}
    return int(formula(*(_shape(arg) for arg in node.args), **keywords, out_val=node.meta.get("val")))


def seconds(node: Node, hardware: Hardware) -> float:
    """The predicted seconds of one run of the node by itself; 0 for views, parts of tuples, and sizes."""
    kind = family(node.target)
    if kind in ("view", "getitem", "symbol"):
        return 0.0
    value = node.meta.get("val")
    written = logical_bytes(value)
    if kind in ("pointwise", "reduction"):
        time = written / hardware.memory_bandwidth
        if qualified_name(node.target) in TRANSCENDENTAL:
            time += written / max(1, _element_size(value)) / hardware.transcendental_rate
        if compat.inductor_pure_random(node.target):
            time += written / max(1, _element_size(value)) * hardware.random_time
        time += numbers_put(node) * hardware.put_time
        if kind == "reduction":
            time += sum(logical_bytes(arg.meta.get("val")) for arg in node.all_input_nodes) / hardware.memory_bandwidth
        return time
    traffic = written + sum(logical_bytes(arg.meta.get("val")) for arg in node.all_input_nodes)
    try:
        work = flops(node)
    except Exception:  # a formula that does not know these arguments: the traffic bounds the time from below
        work = 0
    dtype, attends = _multiplied(node, hardware.device), qualified_name(node.target).startswith(_BY_HEADS)
    rate = hardware.attention_rate(dtype, _attention(node)) if attends else hardware.rate(dtype)
    return max(traffic / hardware.memory_bandwidth, work / rate) + hardware.kernel_overhead


def numbers_put(node: Node) -> int:
    """How many numbers an operator adds to entries that places decide."""
    name = _PUTS.get(qualified_name(node.target))
    if name is None or argument(node, "accumulate", True) is not True:
        return 0
    added = argument(node, name)
    value = added.meta.get("val") if isinstance(added, Node) else None
    return logical_bytes(value) // max(1, _element_size(value))


def _attention(node: Node) -> Attention:
    """The kind of a call of attention, or of its backward."""
    if argument(node, "is_causal"):
        return "causal"
    return "whole" if argument(node, "attn_mask") is None and argument(node, "attn_bias") is None else "masked"


def _multiplied(node: Node, device: str) -> str:
    """The dtype in which an operator multiplies: that of its factors, whatever the dtype of its sums."""
    name = qualified_name(node.target)
    first = _PRODUCTS.get(name, (0,))[0]
    made = _dtype_name(node.meta.get("val"))
    factor = next((_first_tensor(arg.meta.get("val")) for arg in node.args[first:] if isinstance(arg, Node)), None)
    if factor is None or not factor.dtype.is_floating_point:
        return made
    if name.startswith("memgraph::shard_") and device == "cpu":  # the CPU converts the factors first
        return made
    return _dtype_name(factor)


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _first_tensor(item)) is not None), None)
    return value if isinstance(value, torch.Tensor) else None


def _element_size(value: Any) -> int:
    tensor = _first_tensor(value)
    return tensor.element_size() if tensor is not None else 1


def _dtype_name(value: Any) -> str:
    tensor = _first_tensor(value)
    return str(tensor.dtype).removeprefix("torch.") if tensor is not None else "float32"
