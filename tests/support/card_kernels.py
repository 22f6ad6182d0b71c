"""Attention as a card's kernels are called, on the CPU: memory-efficient attention's and cuDNN's operators.

torch has them for CUDA alone. Here the CPU's own kernel stands behind them, which the verifier's stand-in (products and
a softmax) does not use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from memgraph.base import compat

aten = torch.ops.aten
BLOCK = 32  # queries, up to a multiple of which memory-efficient attention fills its sums
Attend = Callable[..., Tensor]
"""Of queries, keys, values and a mask."""


def _added(mask: Tensor, query: Tensor, keys: int) -> Tensor:
    """A mask as torch hands it to a kernel: added to scores, its rows on 8 entries, for each sequence and head."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    if keys % 8:
        mask = F.pad(mask, (0, 8 - keys % 8))[..., :keys]
    return mask.expand(*query.shape[:3], keys)


def efficient(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """By memory-efficient attention."""
    bias = _added(mask, query, key.shape[2])
    return aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, scale=scale)[0]


def cudnn(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """By cuDNN's attention."""
    bias = _added(mask, query, key.shape[2])
    return aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, scale=scale)[0]


def _seeds() -> tuple[Tensor, Tensor]:
    return torch.full((), 77), torch.full((), 78)  # whatever: nothing may depend on them


def _forward(query, key, value, bias, dropout, causal, scale):
    assert not dropout and not causal
    # The CPU's kernel wants equal rows of a mask next to each other, and the card's give what they like for no key.
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias, scale=scale)


def _backward(tangent, query, key, value, out, sums, bias, scale):
    given = (tangent, query, key, value, out, sums, 0.0, False)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, attn_mask=bias, scale=scale)


def _laid(value: Tensor) -> Tensor:
    """As [batch, tokens, heads, features] in memory."""
    return value.transpose(1, 2).contiguous().transpose(1, 2)


def _efficient(query, key, value, bias, sums, dropout=0.0, causal=False, *, scale=None):
    out, sums = _forward(query, key, value, bias, dropout, causal, scale)
    return _laid(out), F.pad(sums.float(), (0, -query.shape[2] % BLOCK), value=float("inf")).contiguous(), *_seeds()


def _efficient_backward(
    tangent, query, key, value, bias, out, sums, seed, offset, dropout, wanted, causal=False, *, scale=None
):
    assert sums.shape[2] == -(-query.shape[2] // BLOCK) * BLOCK and not dropout and not causal and not wanted[3]
    # The kernel reads its sums by blocks: each shard's have to begin with a block.
    assert sums.stride(1) % BLOCK == 0 and sums.storage_offset() % BLOCK == 0
    made = _backward(tangent, query, key, value, out, sums[..., : query.shape[2]].contiguous(), bias, scale)
    return *map(_laid, made), None


def _cudnn(query, key, value, bias, sums, dropout=0.0, causal=False, debug=False, *, scale=None):
    out, sums = _forward(query, key, value, bias, dropout, causal, scale)
    sizes = (None, None, query.shape[2], key.shape[2])
    return torch.empty_like(query).copy_(out), sums.float().contiguous()[..., None], *sizes, *_seeds(), None


def _cudnn_backward(
    tangent, query, key, value, out, sums, seed, offset, bias, cq, ck, queries, keys, dropout, causal, *, scale=None
):
    assert (queries, keys) == (query.shape[2], key.shape[2]) and not dropout and not causal
    made = _backward(tangent, query, key, value, out, sums[..., 0], bias, scale)
    return tuple(torch.empty_like(like).copy_(item) for like, item in zip((query, key, value), made, strict=True))


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """Within it, the operators run on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    kernels = {"efficient": (_efficient, _efficient_backward), "cudnn": (_cudnn, _cudnn_backward)}
    for name, (forward, backward) in kernels.items():
        library.impl(f"_scaled_dot_product_{name}_attention", forward, "CPU")
        library.impl(f"_scaled_dot_product_{name}_attention_backward", backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def called(target: compat.OpOverload, *args: object, **kwargs: object) -> fx.Node:
    """A call with such arguments as a node of a graph, which says what it returns."""

    def fake(item: object) -> object:
        if not isinstance(item, Tensor):
            return item
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype)

    graph = fx.Graph()
    nodes = tuple(graph.placeholder("x") if isinstance(item, Tensor) else item for item in args)
    node = graph.call_function(target, nodes, kwargs)
    with compat.fake_evaluation():
        node.meta["val"] = target(*map(fake, args), **kwargs)
    return node
