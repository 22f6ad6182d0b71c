"""The calls of attention whose mask is the causal one: query i reads key j exactly where j <= i.

Such a mask need not be made at all: `is_causal=True` says the same. It is found by what stands in it, not by how it is
made: masks of transformers, of `tril`, of comparisons of positions. A mask that a sliding window cuts off is causal
where the window is as long as the sequence.

What a mask adds to a score has to be 0 where a key is read, and minus infinity where it is not. The smallest number
of float32, bfloat16 and float64 is as good as that: a score that it is added to is the smallest number again, and its
weight is exactly 0, as each query has a key that it reads (its own). That of float16 is not: scores may be as large.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.masks.conditions import Condition, TooIntricate, at_least, every, negated, some
from memgraph.facts.masks.entries import Cases, Entries, aligned, inside
from memgraph.facts.masks.linear import Linear, variable
from memgraph.facts.masks.rules import RULES
from memgraph.facts.masks.trace import NotKnown, traced

ATTENTION = torch.nn.functional.scaled_dot_product_attention
# The arguments of attention, in order, with what they are where they are not given.
_SIGNATURE = {
    "query": inspect.Parameter.empty,
    "key": inspect.Parameter.empty,
    "value": inspect.Parameter.empty,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_WIDE = (torch.float32, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class RefusedMask:
    """Calls of attention that keep their mask."""

    mask: str
    """The mask's node."""
    calls: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Masks:
    """The masks of the calls of attention in one graph."""

    causal: tuple[str, ...]
    """The calls whose mask is the causal one, by name."""
    refused: tuple[RefusedMask, ...]


def arguments(call: fx.Node) -> dict[str, Any]:
    """The arguments of a call of attention, by name."""
    return _SIGNATURE | dict(zip(_SIGNATURE, call.args, strict=False)) | call.kwargs


def causal_masks(module: fx.GraphModule) -> Masks:
    """Which calls of attention in a Dynamo graph have the causal mask, and why others do not."""
    why: dict[tuple[fx.Node, str, str], str] = {}
    causal: list[str] = []
    refused: dict[tuple[str, str], list[str]] = {}
    for call in module.graph.find_nodes(op="call_function", target=ATTENTION):
        given = arguments(call)
        mask = given["attn_mask"]
        if not isinstance(mask, fx.Node):
            continue
        if not (reason := _of_the_call(given)):
            queries, keys = (given[name].meta["example_value"].shape[-2] for name in ("query", "key"))
            key = (mask, str(queries), str(keys))
            if key not in why:
                why[key] = _of_the_mask(mask, queries, keys)
            reason = why[key]
            if reason and given["dropout_p"]:
                reason += "; nor is it made for some queries at a time: what dropout draws depends on the place"
        if reason:
            refused.setdefault((mask.name, reason), []).append(call.name)
        else:
            causal.append(call.name)
    refusals = [RefusedMask(mask, tuple(calls), reason) for (mask, reason), calls in refused.items()]
    return Masks(tuple(causal), (*refusals, *_in_bodies(module)))


def _of_the_call(given: dict[str, Any]) -> str:
    """Why a call cannot be told that it is causal, whatever its mask; "" if it can."""
    values = [given[name].meta.get("example_value") for name in ("query", "key", "value")]
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in values):
        return "attention on tensors of another layout"
    if given["is_causal"] is not False:
        return "attention is told that it is causal already"
    shape, mask = values[0].shape[:-2], given["attn_mask"].meta["example_value"].shape[:-2]
    same = [_is_one(one) or compat.same_size(one, other) for one, other in zip(mask[::-1], shape[::-1], strict=False)]
    if len(mask) > len(shape) or not all(same):
        return "the mask has more sequences or heads than the queries"
    return ""


def _is_one(length: Any) -> bool:
    return isinstance(length, int) and length == 1


def _of_the_mask(mask: fx.Node, queries: Any, keys: Any) -> str:
    """Why a mask is not the causal one of so many queries and keys; "" if it is."""
    if not compat.same_size(queries, keys):
        return f"{queries} queries read {keys} keys"
    try:
        trace = traced(mask)
        return _differs(Entries(trace, RULES), trace.output, queries)
    except NotKnown as problem:
        return f"not proven to be causal: {problem}"
    except TooIntricate:
        return "not proven to be causal: its entries are too many cases"


def _differs(entries: Entries, mask: torch.Tensor, length: Any) -> str:
    """How a mask differs from the causal one for so many tokens; "" if it does not.  Raises NotKnown, TooIntricate."""
    query, key = variable("query"), variable("key")
    others = tuple(variable(f"dim {dim}") for dim in range(max(0, mask.dim() - 2)))
    within = (*inside((query, key), (length, length)), *inside(others, mask.shape[:-2]))
    shape = (length, length)[2 - mask.dim() :] if mask.dim() < 2 else (length, length)
    for have, want in zip(mask.shape[-2:], shape, strict=True):
        if not _is_one(have) and not compat.same_size(have, want):
            return f"the mask is {tuple(mask.shape)} for {length} queries"
    place = aligned((*others, query, key), mask.shape)
    entry = entries.at(mask, place, within)
    read = entry if not isinstance(entry, tuple) else _read(entry, mask.dtype)
    before: Condition = at_least(query, key)
    if entries.possible(*within, read, negated(before)):
        return "not the causal mask: a query may read keys that come after it"
    if entries.possible(*within, before, negated(read)):
        return "not the causal mask: a query may not read all keys up to its own (a window, padding, packing)"
    return ""


def _read(cases: Cases, dtype: torch.dtype) -> Condition:
    """Where a mask that is added to the scores lets a key be read."""
    found: list[Condition] = []
    for condition, number in cases:
        least = dtype in _WIDE and number == torch.finfo(dtype).min
        if number == 0.0:
            found.append(condition)
        elif isinstance(number, Linear) or not (number == float("-inf") or least):
            raise NotKnown(f"it adds {number} to scores, which a large score outweighs")
    return some(*map(every, found))


def _in_bodies(module: fx.GraphModule) -> list[RefusedMask]:
    """Calls with a mask in regions of their own: checkpointed ones, nested ones."""
    found = []
    for name, part in module.named_modules():
        if part is module or not isinstance(part, fx.GraphModule):
            continue
        for call in part.graph.find_nodes(op="call_function", target=ATTENTION):
            mask = arguments(call)["attn_mask"]
            if isinstance(mask, fx.Node):
                reason = f"attention runs in {name}, a region of its own, which is given its mask"
                found.append(RefusedMask(mask.name, (call.name,), reason))
    return found
