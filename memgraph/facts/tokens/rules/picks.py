"""How tokens pass through operators that pick or write entries by position: index, gather, embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.tokens.states import (
    LENGTHS,
    SUM,
    WHOLE,
    Flow,
    Mixed,
    State,
    Tokens,
    argument,
    counts_from_zero,
    is_tensor,
    rule,
    settle,
    shape_of,
    tensors,
)


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def _gather(node: fx.Node, flow: Flow) -> State:
    reads = tensors(node)
    state = next((known for read in reads if isinstance(known := flow.known(read), Tokens)), None)
    if state is None:
        states = settle(node, flow)
        state = next((known for known in states if isinstance(known, Tokens)), WHOLE)
    if not isinstance(state, Tokens):
        return state
    if node.args[1] % len(shape_of(node.args[0])) in state.dims:
        raise Mixed(node, "picks along the tokens")
    for read in reads:
        if [shape_of(read)[dim] for dim in state.dims] != [shape_of(node)[dim] for dim in state.dims]:
            raise Mixed(node, "picks for a part of the tokens")
        flow.require(read, dataclasses.replace(state, points=""), node)
    return state


@rule("index", "_unsafe_index", "_unsafe_masked_index")
def _index(node: fx.Node, flow: Flow) -> State:
    masked = "masked" in short_name(node.target)
    x, indices = node.args[0], node.args[2 if masked else 1]
    if _each_row(indices, x):
        out = _own_rows(node, flow, indices)
        flow.require(x, out, node)
    elif _picked(node, indices)[0] == [0] and not _apart(flow, x):
        out = _index_rows(node, flow, x, indices)
    else:
        out = _index_features(node, flow, x, indices)
    if masked:
        _require_like(node.args[1], out, shape_of(node), node, flow)
    return out


def _apart(flow: Flow, x: fx.Node) -> bool:
    """Whether a value's tokens are known and do not run along its first dimension."""
    state = flow.known(x)
    return isinstance(state, Tokens) and 0 not in state.dims


def _index_features(node: fx.Node, flow: Flow, x: fx.Node, indices: Any) -> State:
    """The same features of every token: x[..., [3, 1, 2]]."""
    state = flow.known(x) or flow.guess(x, node)
    for index in indices:
        if index is not None:
            flow.require(index, WHOLE, node)
    return _moved(node, state, _moves(node, indices, len(shape_of(x)))) if isinstance(state, Tokens) else state


def _index_rows(node: fx.Node, flow: Flow, x: fx.Node, indices: Any) -> State:
    where = _positions(node, flow, indices)
    if where.points:
        rows = Tokens((0,), _factor(x, flow, node), where.points)
        known = flow.known(x)
        rows = dataclasses.replace(rows, points=known.points) if isinstance(known, Tokens) else rows
        flow.require(x, rows, node)
        return dataclasses.replace(where, points=rows.points)
    if isinstance(flow.known(x), Tokens):
        raise Mixed(node, "picks rows among all tokens")
    flow.require(x, WHOLE, node)
    if not shape_of(indices[0]):
        raise Mixed(node, "picks one row for all tokens")
    return where


@rule("index_put", "_unsafe_index_put")
def _index_put(node: fx.Node, flow: Flow) -> State:
    base, indices, added = node.args[:3]
    return _put(node, flow, base, indices, added)


@rule("_unsafe_masked_index_put_accumulate")
def _masked_put(node: fx.Node, flow: Flow) -> State:
    base, mask, indices, added = node.args
    out = _put(node, flow, base, indices, added)
    state = flow.known(added)
    if isinstance(state, Tokens):
        _require_like(mask, state, shape_of(added), node, flow)
    else:
        flow.require(mask, WHOLE, node)
    return out


def _put(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any) -> State:
    if _each_row(indices, base):
        out = _own_rows(node, flow, indices)
        flow.require(base, out, node)
        _require_like(added, out, shape_of(indices[0]), node, flow)
        return out
    if _picked(node, indices)[0] == [0] and not _apart(flow, base):
        return _put_rows(node, flow, base, indices, added)
    return _put_features(node, flow, base, indices, added)


def _put_features(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any) -> State:
    """Writes the same features of every token."""
    for index in indices:
        if index is not None:
            flow.require(index, WHOLE, node)
    rank = len(shape_of(base))
    moves, length = _moves(node, indices, rank), rank + _picked(node, indices)[1] - len(_picked(node, indices)[0])
    state, given = flow.known(base), flow.known(added)
    if not isinstance(state, Tokens) and isinstance(given, Tokens):
        back, shift = {new: old for old, new in moves.items()}, length - len(shape_of(added))
        moved = dataclasses.replace(given, dims=tuple(dim + shift for dim in given.dims))
        state = flow.require(base, _moved(node, moved, back), node)
    state = state or flow.guess(base, node)
    shape = {new: shape_of(base)[old] for old, new in moves.items()}
    picked = _moved(node, state, moves) if isinstance(state, Tokens) else state
    _require_like(added, picked, [shape.get(dim, 1) for dim in range(length)], node, flow)
    return state


def _put_rows(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any) -> State:
    where = _positions(node, flow, indices)
    if shape_of(added):
        known = flow.known(added)
        wanted = dataclasses.replace(where, points=known.points if isinstance(known, Tokens) else "")
        if short_name(added.target) in LENGTHS:
            wanted = dataclasses.replace(where, points=where.order)
        flow.require(added, wanted, node)
        points = wanted.points
    else:
        points = ""
    if where.points:
        out = Tokens((0,), _factor(base, flow, node), where.points)
        flow.require(base, out, node)
        return dataclasses.replace(out, points=points)
    accumulates = "accumulate" in short_name(node.target) or argument(node, "accumulate", False)
    if not accumulates or not _zero(base) or points:
        raise Mixed(node, "writes rows of all tokens over one another")
    flow.require(base, WHOLE, node)
    return SUM


def _zero(node: fx.Node) -> bool:
    return short_name(node.target) == "full" and node.args[1] == 0 or short_name(node.target) == "zeros"


def _positions(node: fx.Node, flow: Flow, indices: Any) -> Tokens:
    """The state of the one index along the first dimension."""
    index = indices[0]
    state = flow.known(index) or flow.guess(index, node)
    if not isinstance(state, Tokens):
        raise Mixed(node, "picks rows that are the same for all tokens")
    return state


def _factor(rows: fx.Node, flow: Flow, node: fx.Node) -> int:
    factor, rest = divmod(shape_of(rows)[0], flow.tokens)
    if rest:
        raise Mixed(node, "picks rows of which there are not as many as tokens")
    return factor


# The n-th token at the n-th of several positions: x[arange(len(x)), labels].


def _each_row(indices: Any, x: fx.Node) -> bool:
    first = indices[0]
    return (
        len(indices) > 1
        and all(is_tensor(index) and len(shape_of(index)) == 1 for index in indices)
        and short_name(first.target) in LENGTHS
        and counts_from_zero(first)
        and shape_of(first)[0] == shape_of(x)[0]
    )


def _own_rows(node: fx.Node, flow: Flow, indices: Any) -> Tokens:
    """The state of what is picked for each token by its own number."""
    state = flow.known(indices[1]) or flow.guess(indices[1], node)
    if not isinstance(state, Tokens) or state.points:
        raise Mixed(node, "picks rows among all tokens")
    flow.require(indices[0], dataclasses.replace(state, points=state.order), node)
    for index in indices[1:]:
        flow.require(index, state, node)
    return state


def _picked(node: fx.Node, indices: Any) -> tuple[list[int], int]:
    """The dimensions that are picked along, and how many there are instead of them."""
    given = [index for index in indices if index is not None]
    if not all(is_tensor(index) and index.meta["val"].dtype not in (torch.bool, torch.uint8) for index in given):
        raise Mixed(node, "picks by a mask")
    return [n for n, index in enumerate(indices) if index is not None], max(len(shape_of(index)) for index in given)


def _moves(node: fx.Node, indices: Any, rank: int) -> dict[int, int]:
    """Where the dimensions are afterwards that nothing is picked along."""
    picked, many = _picked(node, indices)
    first = picked[0] if picked[-1] - picked[0] == len(picked) - 1 else 0
    kept = [dim for dim in range(rank) if dim not in picked]
    return {dim: n + (many if n >= first else 0) for n, dim in enumerate(kept)}


def _moved(node: fx.Node, state: Tokens, moves: Mapping[int, int]) -> Tokens:
    if not all(dim in moves for dim in state.dims):
        raise Mixed(node, "picks along the tokens")
    return dataclasses.replace(state, dims=tuple(moves[dim] for dim in state.dims))


def _require_like(read: fx.Node, state: State, shape: Sequence[int], node: fx.Node, flow: Flow) -> None:
    """Ask for the state of what is broadcast to a shape with the tokens at some of its dimensions."""
    if not isinstance(state, Tokens):
        flow.require(read, state, node)
        return
    shift = len(shape) - len(shape_of(read))
    sizes = [shape_of(read)[dim - shift] if dim >= shift else 1 for dim in state.dims]
    if all(size == 1 for size in sizes) and any(shape[dim] != 1 for dim in state.dims):
        flow.require(read, WHOLE, node)
    elif sizes == [shape[dim] for dim in state.dims]:
        flow.require(read, dataclasses.replace(state, dims=tuple(dim - shift for dim in state.dims), points=""), node)
    else:
        raise Mixed(node, f"repeats {read.name} along a part of the tokens")


@rule("embedding")
def _embedding(node: fx.Node, flow: Flow) -> State:
    weight, ids = node.args[:2]
    state = flow.known(ids) or flow.guess(ids, node)
    flow.require(weight, WHOLE, node)
    if isinstance(state, Tokens) and state.points:
        raise Mixed(node, "picks rows among all tokens")
    return state
