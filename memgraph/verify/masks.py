"""Attention that was told to be causal held against attention with the mask that it had.

Around the calls nothing may have changed. Of each mask, the operators that make it are run, at the lengths that they
have, on the CPU (`sampled.py`): of a long sequence some tokens are looked at. The causal mask of some of the tokens is
the causal mask again, so attention itself is run on these tokens, with random operands, with the mask and without it.
Nothing here knows how a mask was found to be causal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.facts.plain import generic
from memgraph.verify.sampled import Sampler, Untried, run

# How far attention may be off in float64, relative to the largest number.
TOLERANCE = 1e-12
# Where the mask differs by sequence, attention runs on so many sequences; on all heads.
SEQUENCES = 2
_OPERANDS = ("query", "key", "value")
_OTHERS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class MaskError(Exception):
    """Calls of attention whose mask cannot be tried."""

    def __init__(self, mask: str, calls: tuple[str, ...], reason: str) -> None:
        self.mask, self.calls = mask, calls
        super().__init__(reason)


def verify_masks(before: fx.GraphModule, after: fx.GraphModule) -> None:
    """Raises VerifyError if a call of attention that lost its mask computes something else.

    Raises MaskError if that cannot be tried.

    Graphs in which no call lost its mask are not looked at.
    """
    new = {node.name: node for node in after.graph.nodes}
    lost: dict[fx.Node, list[fx.Node]] = {}
    for node in _attention(before):
        mask = _given(node)["attn_mask"]
        now = new.get(node.name)
        if isinstance(mask, fx.Node) and now is not None and _given(now)["attn_mask"] is not mask:
            if (other := _given(now)["attn_mask"]) is None:
                lost.setdefault(mask, []).append(node)
            elif getattr(other, "name", None) != mask.name:
                raise VerifyError("masks", [f"{node.name} has another mask: {other}"])
    if not lost:
        return
    calls = {node.name for nodes in lost.values() for node in nodes}
    if breaches := [*_around(before, after, calls), *_at_calls(lost, new)]:
        raise VerifyError("masks", breaches)
    for mask, nodes in lost.items():
        try:
            breaches = list(_tried(mask, nodes, new))
        except Untried as problem:
            raise MaskError(mask.name, tuple(node.name for node in nodes), str(problem)) from problem
        if breaches:
            raise VerifyError("masks", breaches)


def _attention(module: fx.GraphModule) -> list[fx.Node]:
    return module.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention)


def _given(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of attention."""
    names = (*_OPERANDS, *_OTHERS)
    defaults: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
    return {name: defaults.get(name) for name in names} | dict(zip(names, node.args, strict=False)) | node.kwargs


# --- the graph ---------------------------------------------------------------------------------------------


def _around(before: fx.GraphModule, after: fx.GraphModule, calls: set[str]) -> Iterator[str]:
    """Breaches: operators that differ, beside the calls; ones that are missing although something reads them."""
    new = {node.name: node for node in after.graph.nodes}
    if [node.name for node in before.graph.nodes if node.name in new] != list(new):
        yield "the order of the operators is another, or there are new ones"
    for node in before.graph.nodes:
        if node.name not in new:
            if any(user.name in new and user.name not in calls for user in node.users):
                yield f"{node.name} is missing, and is read"
            if node.op in ("placeholder", "output"):
                yield f"{node.name} is missing"
        elif node.name not in calls and _spelled(node) != _spelled(new[node.name]):
            yield f"{node.name} is another operator"


def _spelled(node: fx.Node) -> tuple:
    return node.op, node.target, str(fx.map_arg((node.args, dict(node.kwargs)), lambda read: f"%{read.name}"))


def _at_calls(lost: Mapping[fx.Node, list[fx.Node]], new: Mapping[str, fx.Node]) -> Iterator[str]:
    """Breaches: calls that lost more than their mask, or are not causal now."""
    for nodes in lost.values():
        for node in nodes:
            was, now = _given(node), _given(new[node.name])
            for name in (*_OPERANDS, "dropout_p", "scale", "enable_gqa"):
                if getattr(was[name], "name", was[name]) != getattr(now[name], "name", now[name]):
                    yield f"{node.name} has another {name}"
            if was["is_causal"] is not False or now["is_causal"] is not True:
                yield f"{node.name} lost its mask and is not told to be causal"


# --- the masks ---------------------------------------------------------------------------------------------


def _tried(mask: fx.Node, calls: list[fx.Node], new: Mapping[str, fx.Node]) -> Iterator[str]:
    """Breaches: entries of a mask that are not those of the causal one, calls that compute something else."""
    symbols = sorted({str(symbol) for node in mask.graph.nodes for symbol in _symbols(node)})
    for values in ({}, generic(symbols, above=100)) if symbols else ({},):
        with compat.reading_with(values):
            sampler = Sampler(_numbers(mask.graph))
            made = run(mask, sampler, compat.size_hint)
            for call in calls:
                yield from _at(call, new[call.name], made, sampler)


def _symbols(node: fx.Node) -> set[Any]:
    return compat.symbols_in(node.meta.get("example_value")) if node.op == "placeholder" else set()


def _numbers(graph: fx.Graph) -> set[int]:
    """The whole numbers among a graph's constants."""
    found: set[int] = set()
    for node in graph.nodes:
        leaves = compat.tree_leaves((node.args, dict(node.kwargs)))
        parts = [part for leaf in leaves for part in ((leaf.start, leaf.stop) if isinstance(leaf, slice) else (leaf,))]
        found |= {abs(part) for part in parts if isinstance(part, int) and not isinstance(part, bool)}
    return found


def _at(call: fx.Node, now: fx.Node, mask: torch.Tensor, sampler: Sampler) -> Iterator[str]:
    """Breaches at one call.  mask: as it was made, whole or known to the sampler."""
    given = _given(call)
    shapes = {name: [compat.size_hint(n) for n in given[name].meta["example_value"].shape] for name in _OPERANDS}
    queries, keys = shapes["query"][-2], shapes["key"][-2]
    if queries != keys:
        yield f"{call.name} has {queries} queries and {keys} keys"
        return
    with compat.really(), torch.no_grad():
        places = sampler.places(queries)
        read, held = places <= places[:, None], sampler.at_places(mask)
        wrong = held != read if held.dtype is torch.bool else ~torch.where(read, held == 0, _hides(held))
        if bool(wrong.any()):
            yield f"the mask of {call.name} is not the causal one at {int(wrong.sum())} of {wrong.numel()} places"
            return
        # All of its sequences and heads say the same: one stands for all that the queries have.
        few = held[(slice(1),) * (held.dim() - 2)]
        want, got = (_attend(node, shapes, few if node is call else None, len(places)) for node in (call, now))
        if want.shape != got.shape:
            yield f"{call.name} has another shape without its mask"
            return
        error = float((want - got).abs().max() / want.abs().max()) if want.numel() else 0.0
        if not error <= TOLERANCE:
            yield f"{call.name} differs by {error:.2g} without its mask, on {len(places)} tokens"


def _hides(mask: torch.Tensor) -> torch.Tensor:
    """Where what is added to a score leaves nothing of it."""
    return mask <= torch.finfo(mask.dtype).min


def _attend(node: fx.Node, shapes: Mapping[str, list[int]], mask: torch.Tensor | None, tokens: int) -> torch.Tensor:
    """Attention as a call says it, on random tokens in float64, without dropout."""
    generator = torch.Generator().manual_seed(0)
    data = {}
    for name in _OPERANDS:
        *others, width = (*shapes[name][:-2], tokens, shapes[name][-1])
        shape = [min(SEQUENCES, others[0]) if len(others) == 3 else others[0], *others[1:], width]
        data[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    rest: dict[str, Any] = {name: _given(node)[name] for name in ("is_causal", "scale", "enable_gqa")}
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.double()
    attention: Callable[..., torch.Tensor] = node.target
    return attention(**data, attn_mask=mask, dropout_p=0.0, **rest)
