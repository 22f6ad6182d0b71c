"""Memory that an ATen kernel allocates and frees within one call, on the CPU: no wrapper, no graph shows it.

Measured with the profiler at two threads, as bytes beyond the outputs. Of the operators that Hugging Face's
Llama, Qwen3, Gemma3, GPT-2, BERT, ViT and T5 leave to ATen, attention and convolutions need some that matter:
without these rules the step of a Llama with 256 features and 512 tokens read 1.1 % low, 4.4 % under bfloat16
autocast. None, or under 5 KiB: mm, addmm, bmm (with the dense strides that Inductor gives them), cumsum,
sort, topk, index_put_, scatter_add_, scatter_reduce_, embedding_dense_backward, _grouped_mm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def bytes_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """The most bytes that a call of an ATen operator holds beyond its output.  op: its name, no overload.

    Arguments and output are anything with `size`, `stride` (both tuples) and `dtype`.
    """
    rule = _RULES.get(op)
    return rule(args, kwargs, output) if rule else 0


def _nbytes(tensor: Any) -> int:
    return math.prod(tensor.size) * tensor.dtype.itemsize


def _dense(tensor: Any, order: Sequence[int]) -> bool:
    """Whether the elements lie without gaps, the last dimension of `order` fastest."""
    expected = 1
    for dim in reversed(order):
        if tensor.size[dim] != 1 and tensor.stride[dim] != expected:
            return False
        expected *= tensor.size[dim]
    return True


# ATen/native/cpu/FlashAttentionKernel.cpp works on one tile of queries and keys a thread: 256, 64 or 32
# queries (from 768, 192, 0 on) by 512 keys, in float32; bfloat16 and half keep another in their own type.
# Measured, [heads, tokens, features] at 2 threads: [8, 512, 64] 295936, [2, 2048, 64] 1183744, [2, 1000, 80]
# 1216512 forward, all as computed; backward 524544, 2098176, 2098176, all as computed.


def _tile(query: Any, key: Any) -> tuple[int, int]:
    tokens, keys = query.size[2], key.size[2]
    split = 256 if tokens >= 768 else 64 if tokens >= 192 else 32
    return min(split, tokens), min(512, keys)


def _attention(args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    query, key = args[:2]
    queries, keys = _tile(query, key)
    numbers = queries * (keys + 2 + query.size[3])  # scores, their maximum and sum, the output's tile
    return torch.get_num_threads() * (numbers * 4 + _reduced(query) * queries * keys)


def _attention_backward(args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    gradient, query, key = args[:3]
    queries, keys = _tile(query, key)
    tiles = torch.get_num_threads() * 2 * queries * keys * (4 + _reduced(query))  # of scores, of their gradient
    # It needs the gradient as [batch, tokens, heads, features] and copies one that lies otherwise.
    copy = 0 if _dense(gradient, (0, 2, 1, 3)) else _nbytes(gradient)
    return tiles + queries * 4 + copy


def _reduced(query: Any) -> int:
    return query.dtype.itemsize if query.dtype.itemsize < 4 else 0


# ATen/native/mkldnn: oneDNN copies what does not lie in the format it works in. Channels last, which Inductor
# chooses, that is the weight: [8, 16, 32, 32] by [32, 16, 3, 3], 18432 bytes, takes 30768 forward and 36992
# backward. Else it is operands or result: 1048576 (the output) forward, 1572864 (gradient, input) backward.

_SCRATCHPAD = 12336  # oneDNN's own, forward, the same for all shapes tried


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    value, weight = args[:2]
    if _channels_last(value) or _channels_last(weight):
        return _copies(value) + _nbytes(weight) + _SCRATCHPAD
    return max(_nbytes(value) + _nbytes(weight), _nbytes(output))


def _convolution_backward(args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    gradient, value, weight = args[:3]
    if _channels_last(value) or _channels_last(weight):
        return _copies(gradient) + _copies(value) + 2 * _nbytes(weight)
    return _nbytes(gradient) + _nbytes(value)


def _copies(tensor: Any) -> int:
    return 0 if _channels_last(tensor) else _nbytes(tensor)


def _channels_last(tensor: Any) -> bool:
    dims = range(len(tensor.size))
    return len(dims) > 3 and _dense(tensor, (0, *dims[2:], 1))


_RULES: dict[str, Callable[[Sequence[Any], Mapping[str, Any], Any], int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
