"""Masks of attention as Dynamo's graph has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from memgraph.facts.masks.causal import Masks, causal_masks
from memgraph.passes.graphs import Captured

LENGTH = 7


def queries(length: int = LENGTH, heads: int = 2, batch: int = 2) -> Tensor:
    return torch.randn(batch, heads, length, 4, generator=torch.Generator().manual_seed(0))


def captured(function: Callable[..., object], *inputs: object, dynamic: int | None = None) -> Captured:
    """What Dynamo makes of a function.  dynamic: a dimension of the first input whose length is a symbol."""
    found = []

    def backend(gm, given):
        found.append(Captured(gm, given))
        return gm.forward

    torch._dynamo.reset()
    if dynamic is not None:
        torch._dynamo.mark_dynamic(inputs[0], dynamic)
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found[0]


def attending(make: Callable[[Tensor], Tensor], **options: object) -> Callable[[Tensor], Tensor]:
    """Attention of queries among themselves, with a mask that is made for them."""
    return lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=make(q), **options)


def masks_of(make: Callable[[Tensor], Tensor], length: int = LENGTH, dynamic: bool = False) -> Masks:
    return causal_masks(captured(attending(make), queries(length), dynamic=2 if dynamic else None).module)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def read(mask: Tensor) -> Tensor:
    """Where a mask lets a key be read: exactly 0 or nothing of a score is left where it is added."""
    return mask if mask.dtype is torch.bool else mask == 0
