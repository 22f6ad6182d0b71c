"""How tokens pass through operators that pick or write entries by position: index, gather, embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import argument, qualified_name
from memgraph.facts.tokens.kinds import COUNTERS
from memgraph.facts.tokens.nodes import counts_from_zero, is_tensor, makes_zeros, shape_of, tensors
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_all
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, MixesTokens, Sharded, State

aten = torch.ops.aten


def _gather(node: fx.Node, flow: Flow) -> State:
    reads = tensors(node)
    state = next((known for read in reads if isinstance(known := flow.known(read), Sharded)), None)
    if state is None:
        state = next((known for known in read_all(node, flow) if isinstance(known, Sharded)), None)
    if state is None:
        return REPLICATED
    if node.args[1] % len(shape_of(node.args[0])) in state.dims:
        raise MixesTokens(node, "picks along the tokens")
    for read in reads:
        if [shape_of(read)[dim] for dim in state.dims] != [shape_of(node)[dim] for dim in state.dims]:
            raise MixesTokens(node, "picks for a part of the tokens")
        flow.require(read, dataclasses.replace(state, points=None), node)
    return state


def _index(node: fx.Node, flow: Flow) -> State:
    return _pick(node, flow, *node.args[:2])


def _masked_index(node: fx.Node, flow: Flow) -> State:
    x, mask, indices = node.args[:3]
    out = _pick(node, flow, x, indices)
    _require_like(mask, out, shape_of(node), node, flow)
    return out


def _pick(node: fx.Node, flow: Flow, x: fx.Node, indices: Any) -> State:
    if _each_row(indices, x):
        out = _own_rows(node, flow, indices)
        flow.require(x, out, node)
        return out
    if _picked(node, indices)[0] == [0] and not _apart(flow, x):
        return _index_rows(node, flow, x, indices)
    return _index_features(node, flow, x, indices)


def _apart(flow: Flow, x: fx.Node) -> bool:
    """Whether a value is known to be sharded, but not along its first dimension."""
    state = flow.known(x)
    return isinstance(state, Sharded) and 0 not in state.dims


def _index_features(node: fx.Node, flow: Flow, x: fx.Node, indices: Any) -> State:
    """The same features of every token: x[..., [3, 1, 2]]."""
    state = flow.read(x, node)
    for index in indices:
        if index is not None:
            flow.require(index, REPLICATED, node)
    return _moved(node, state, _moves(node, indices, len(shape_of(x)))) if isinstance(state, Sharded) else state


def _index_rows(node: fx.Node, flow: Flow, x: fx.Node, indices: Any) -> State:
    """Rows at positions: of the tokens' own rows in another order, or of a table that is the same for all tokens."""
    where = _positions(node, flow, indices)
    if where.points:
        rows = Sharded((0,), _factor(x, flow, node), where.points)
        known = flow.known(x)
        rows = dataclasses.replace(rows, points=known.points) if isinstance(known, Sharded) else rows
        flow.require(x, rows, node)
        return dataclasses.replace(where, points=rows.points)
    if isinstance(flow.known(x), Sharded):
        raise MixesTokens(node, "picks rows among all tokens")
    flow.require(x, REPLICATED, node)
    if not shape_of(indices[0]):
        raise MixesTokens(node, "picks one row for all tokens")
    return where


def _index_put(node: fx.Node, flow: Flow) -> State:
    base, indices, added = node.args[:3]
    return _put(node, flow, base, indices, added, accumulates=argument(node, "accumulate", False))


def _masked_put(node: fx.Node, flow: Flow) -> State:
    base, mask, indices, added = node.args
    out = _put(node, flow, base, indices, added, accumulates=True)
    state = flow.known(added)
    if isinstance(state, Sharded):
        _require_like(mask, state, shape_of(added), node, flow)
    else:
        flow.require(mask, REPLICATED, node)
    return out


def _put(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any, *, accumulates: bool) -> State:
    if _each_row(indices, base):
        out = _own_rows(node, flow, indices)
        flow.require(base, out, node)
        _require_like(added, out, shape_of(indices[0]), node, flow)
        return out
    if _picked(node, indices)[0] == [0] and not _apart(flow, base):
        return _put_rows(node, flow, base, indices, added, accumulates=accumulates)
    return _put_features(node, flow, base, indices, added)


def _put_features(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any) -> State:
    """Writes the same features of every token."""
    for index in indices:
        if index is not None:
            flow.require(index, REPLICATED, node)
    rank = len(shape_of(base))
    moves, length = _moves(node, indices, rank), rank + _picked(node, indices)[1] - len(_picked(node, indices)[0])
    state, given = flow.known(base), flow.known(added)
    if not isinstance(state, Sharded) and isinstance(given, Sharded):
        back, shift = {new: old for old, new in moves.items()}, length - len(shape_of(added))
        moved = dataclasses.replace(given, dims=tuple(dim + shift for dim in given.dims))
        state = flow.require(base, _moved(node, moved, back), node)
    state = state or flow.read(base, node)
    shape = {new: shape_of(base)[old] for old, new in moves.items()}
    picked = _moved(node, state, moves) if isinstance(state, Sharded) else state
    _require_like(added, picked, [shape.get(dim, 1) for dim in range(length)], node, flow)
    return state


def _put_rows(node: fx.Node, flow: Flow, base: fx.Node, indices: Any, added: Any, *, accumulates: bool) -> State:
    _follow_added(node, flow, indices[0], added)
    where = _positions(node, flow, indices)
    points = None
    if shape_of(added):
        known = flow.known(added)
        points = known.points if isinstance(known, Sharded) else None
        if qualified_name(added.target) in COUNTERS:
            points = where.order
        flow.require(added, dataclasses.replace(where, points=points), node)
    if where.points:
        out = Sharded((0,), _factor(base, flow, node), where.points)
        flow.require(base, out, node)
        return dataclasses.replace(out, points=points)
    if not accumulates or not makes_zeros(base) or points:
        raise MixesTokens(node, "writes rows of all tokens over one another")
    flow.require(base, REPLICATED, node)
    return PARTIAL


def _follow_added(node: fx.Node, flow: Flow, index: fx.Node, added: fx.Node) -> None:
    """Entries that each token has its own of are put at places that it has its own of: a place for each key, say."""
    state, shape = flow.known(added), shape_of(index)
    if flow.known(index) is not None or not isinstance(state, Sharded) or state.points:
        return
    if all(dim < len(shape) and shape[dim] == shape_of(added)[dim] for dim in state.dims):
        flow.require(index, state, node)


def _positions(node: fx.Node, flow: Flow, indices: Any) -> Sharded:
    """The state of the one index along the first dimension."""
    index = indices[0]
    state = flow.read(index, node)
    if not isinstance(state, Sharded):
        raise MixesTokens(node, "picks rows that are the same for all tokens")
    return state


def _factor(rows: fx.Node, flow: Flow, node: fx.Node) -> int:
    factor, rest = divmod(shape_of(rows)[0], flow.tokens)
    if rest:
        raise MixesTokens(node, "picks rows of which there are not as many as tokens")
    return factor


def _each_row(indices: Any, x: fx.Node) -> bool:
    """Whether each row is picked at a position of its own: x[arange(len(x)), labels]."""
    first = indices[0]
    return (
        len(indices) > 1
        and all(is_tensor(index) and len(shape_of(index)) == 1 for index in indices)
        and qualified_name(first.target) in COUNTERS
        and counts_from_zero(first)
        and shape_of(first)[0] == shape_of(x)[0]
    )


def _own_rows(node: fx.Node, flow: Flow, indices: Any) -> Sharded:
    """The state of the entries that each token picks by its own number."""
    state = flow.read(indices[1], node)
    if not isinstance(state, Sharded) or state.points:
        raise MixesTokens(node, "picks rows among all tokens")
    flow.require(indices[0], dataclasses.replace(state, points=state.order), node)
    for index in indices[1:]:
        flow.require(index, state, node)
    return state


def _picked(node: fx.Node, indices: Any) -> tuple[list[int], int]:
    """The dimensions along which entries are picked, and the number of dimensions that take their place."""
    given = [index for index in indices if index is not None]
    if not all(is_tensor(index) and index.meta["val"].dtype not in (torch.bool, torch.uint8) for index in given):
        raise MixesTokens(node, "picks by a mask")
    return [n for n, index in enumerate(indices) if index is not None], max(len(shape_of(index)) for index in given)


def _moves(node: fx.Node, indices: Any, rank: int) -> dict[int, int]:
    """By dimension along which nothing is picked, its place in the output."""
    picked, many = _picked(node, indices)
    first = picked[0] if picked[-1] - picked[0] == len(picked) - 1 else 0
    kept = [dim for dim in range(rank) if dim not in picked]
    return {dim: n + (many if n >= first else 0) for n, dim in enumerate(kept)}


def _moved(node: fx.Node, state: Sharded, moves: Mapping[int, int]) -> Sharded:
    if not all(dim in moves for dim in state.dims):
        raise MixesTokens(node, "picks along the tokens")
    return dataclasses.replace(state, dims=tuple(moves[dim] for dim in state.dims))


def _require_like(read: fx.Node, state: State, shape: Sequence[int], node: fx.Node, flow: Flow) -> None:
    """Require the state of a value that is broadcast to a shape of which all values are in `state`."""
    if not isinstance(state, Sharded):
        flow.require(read, state, node)
        return
    shift = len(shape) - len(shape_of(read))
    sizes = [shape_of(read)[dim - shift] if dim >= shift else 1 for dim in state.dims]
    if all(size == 1 for size in sizes) and any(shape[dim] != 1 for dim in state.dims):
        flow.require(read, REPLICATED, node)
    elif sizes == [shape[dim] for dim in state.dims]:
        flow.require(read, dataclasses.replace(state, dims=tuple(dim - shift for dim in state.dims), points=None), node)
    else:
        raise MixesTokens(node, f"repeats {read.name} along a part of the tokens")


def _embedding(node: fx.Node, flow: Flow) -> State:
    weight, ids = node.args[:2]
    state = flow.read(ids, node)
    flow.require(weight, REPLICATED, node)
    if isinstance(state, Sharded) and state.points:
        raise MixesTokens(node, "picks rows among all tokens")
    return state


_GATHERS = (aten.gather, aten.scatter, aten.scatter_add, aten.scatter_reduce)
RULES: dict[Any, Rule] = {
    **dict.fromkeys(_GATHERS, _gather),
    aten.index: _index,
    aten._unsafe_index: _index,
    aten._unsafe_masked_index: _masked_index,
    aten.index_put: _index_put,
    aten._unsafe_index_put: _index_put,
    aten._unsafe_masked_index_put_accumulate: _masked_put,
    aten.embedding: _embedding,
}
