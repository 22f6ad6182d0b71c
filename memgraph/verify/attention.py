"""What a card's kernels of attention compute, as products and a softmax: a trial is on the CPU, which has none of them.

    out = softmax(q @ k.T * scale + bias) @ v        logsumexp = log(sum(exp(q @ k.T * scale + bias)))

Everything is in float64, and is rounded to the types that the kernels return. Where the kernels differ is what stands
beside `out`: memory-efficient attention fills its sums up to a multiple of 32 queries, cuDNN's has lengths as numbers.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, fx

from memgraph.verify.arguments import argument, name_of
from memgraph.verify.smaller import Sizes

_EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
_CUDNN = "aten::_scaled_dot_product_cudnn_attention"
KERNELS = frozenset((_EFFICIENT, _CUDNN, f"{_EFFICIENT}_backward", f"{_CUDNN}_backward"))
"""Those of a card."""
_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = KERNELS | {_CPU, f"{_CPU}_backward"}


def attend(node: fx.Node, args: tuple, kwargs: dict, sizes: Sizes) -> tuple[Any, ...]:
    """What a call of one of KERNELS gives on small sizes, in the layouts that its metadata says.

    Raises NotImplementedError where the call asks for more, and ValueError where it is told another number of queries.
    """
    given = functools.partial(argument, node.target, args, kwargs)
    if given("dropout_p") or given("is_causal") or any((given("grad_input_mask") or ())[3:]):
        raise NotImplementedError("attention with dropout, or with more gradients than three")
    query, key, value = (given(name).double() for name in ("query", "key", "value"))
    heads, groups = query.shape[1], key.shape[1]
    key, value = (item.repeat_interleave(heads // groups, 1) for item in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if given("scale") is None else given("scale")
    scores = query @ key.mT * scale
    if (bias := given("attn_bias")) is not None:
        scores = scores + bias.double()
    made: tuple[Tensor, ...]
    if name_of(node.target) in (_EFFICIENT, _CUDNN):
        sums = scores.logsumexp(-1)
        made = (_weights(scores, sums) @ value, sums)
    else:
        for name, held in (("max_q", query), ("max_k", key)):
            told = given(name)
            if told is not None and sizes[told] != held.shape[2]:
                raise ValueError(f"is told of {told} {'queries' if held is query else 'keys'}")
        made = _gradients(given, scores, query, key, value, scale)
        batch, length = key.shape[0], key.shape[2]
        made = (made[0], *(item.view(batch, groups, -1, length, item.shape[-1]).sum(2) for item in made[1:]))
    return tuple(_as_said(said, made[n] if n < len(made) else None, sizes) for n, said in enumerate(node.meta["val"]))


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    """Of each key for each query; 0 for a query that reads none."""
    return torch.where(sums.isinf()[..., None], 0, (scores - sums[..., None]).exp())


def _gradients(given: Any, scores: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple:
    """Of queries, keys and values, of the forward's output and sums as they are given."""
    out = given("out").double()
    tangent = given("grad_out" if given("grad_out") is not None else "grad_out_").double()
    sums = given("logsumexp").double().reshape(*scores.shape[:2], -1)[..., : query.shape[2]]
    weights = _weights(scores, sums)
    of_scores = weights * (tangent @ value.mT - (tangent * out).sum(-1, keepdim=True)) * scale
    return of_scores @ key, of_scores.mT @ query, weights.mT @ tangent


def _as_said(said: Any, made: Tensor | None, sizes: Sizes) -> Any:
    """A value in its layout and type. What has more rows than were made ends with infinity, as sums do."""
    if not isinstance(said, Tensor):
        return sizes[said] if isinstance(said, int) else said
    shape = sizes.shape(said.shape)
    held = torch.empty_strided(shape, sizes.stride(said.shape, said.stride()), dtype=said.dtype)
    if made is None:  # what nothing reads without dropout
        return held.zero_()
    if made.dim() < len(shape):
        made = made[..., None]
    held.fill_(math.inf).narrow(2, 0, made.shape[2]).copy_(made)
    return held
