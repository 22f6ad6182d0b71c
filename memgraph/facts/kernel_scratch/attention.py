"""Attention on the CPU: tiles of scores, one set a thread (ATen/native/cpu/FlashAttentionKernel.cpp).

It works on one tile of queries and keys a thread: 256, 64 or 32 queries (from 768, 192, 0 tokens on) by 512 keys, in
float32; bfloat16 and half keep another in their own type. Measured, bytes for [heads, tokens, features] at 2 threads:
[8, 512, 64] 295936, [2, 2048, 64] 1183744, [2, 1000, 80] 1216512 forward, all as computed; backward 524544,
2098176, 2098176, all as computed.

With AMX, the forward of bfloat16 and half packs all keys and values first, and a thread a block of keys: for these
shapes in bfloat16 1179648, 1179648, 803840 more than without, as computed.
"""

from __future__ import annotations

import math

import torch

from memgraph.facts.kernel_scratch.operands import Call, Operand


def plain(call: Call) -> bool:
    """Whether its products are MKL's, which take nothing of their own; those of bfloat16 and float16 are oneDNN's."""
    return call.named["query"].dtype.itemsize >= 4


def forward(call: Call) -> int:
    """Bytes of the forward: exact where `plain` holds, else a bound."""
    query, key = call.named["query"], call.named["key"]
    queries, keys = _tile(query, key)
    numbers = queries * (keys + 2 + query.size[3])  # scores, their maximum and sum, the output's tile
    of_a_thread = numbers * 4 + _reduced(query) * (queries + query.size[3]) * keys + _packed(query)
    packed = 2 * _reduced(query) * math.prod(query.size[:2]) * key.size[2] * query.size[3]
    return torch.get_num_threads() * of_a_thread + packed


def backward(call: Call) -> int:
    """Bytes of the backward: exact where `plain` holds, else a bound."""
    gradient, query, key = call.named["grad_out"], call.named["query"], call.named["key"]
    queries, keys = _tile(query, key)
    tiles = torch.get_num_threads() * 2 * queries * keys * (4 + _reduced(query))  # of scores, of their gradient
    # It needs the gradient as [batch, tokens, heads, features] and copies one that lies otherwise.
    copy = 0 if gradient.dense((0, 2, 1, 3)) else gradient.nbytes
    return tiles + queries * 4 + copy + torch.get_num_threads() * _packed(query)


def _tile(query: Operand, key: Operand) -> tuple[int, int]:
    tokens, keys = query.size[2], key.size[2]
    split = 256 if tokens >= 768 else 64 if tokens >= 192 else 32
    return min(split, tokens), min(512, keys)


def _reduced(query: Operand) -> int:
    return query.dtype.itemsize if query.dtype.itemsize < 4 else 0


def _packed(query: Operand) -> int:
    """At most, of a thread: the blocks that oneDNN makes of a product's factors (107,652 and 230,532 measured)."""
    return 0 if query.dtype.itemsize >= 4 else 256 * 1024 + 512 * query.size[3] * query.dtype.itemsize
