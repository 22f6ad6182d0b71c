"""How tokens pass through operators that take, join or write parts along dimensions that are not the tokens'."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import argument, qualified_name
from memgraph.facts.tokens.kinds import MAKERS
from memgraph.facts.tokens.nodes import shape_of, tensors
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_all, read_first
from memgraph.facts.tokens.states import (
    PARTIAL,
    REPLICATED,
    ROUTING,
    MixesTokens,
    Sharded,
    State,
    without_dims,
)

aten = torch.ops.aten


def _slice(node: fx.Node, flow: Flow) -> State:
    """Parts that keep all dimensions."""
    state = _common(node, flow)
    _refuse_along(node, state, _dims(node, tensors(node)[0]))
    return _for_each_part(node, state)


def _select(node: fx.Node, flow: Flow) -> State:
    """Parts that lack the dimension."""
    state = _common(node, flow)
    if isinstance(state, Sharded):
        dims = _dims(node, tensors(node)[0])
        _refuse_along(node, state, dims)
        state = without_dims(state, dims)
    return _for_each_part(node, state)


def _slice_backward(node: fx.Node, flow: Flow) -> State:
    state = _common(node, flow)
    _refuse_along(node, state, _dims(node, node))
    return state


def _select_backward(node: fx.Node, flow: Flow) -> State:
    state = _common(node, flow)
    if not isinstance(state, Sharded):
        return state
    (new,) = _dims(node, node)
    return dataclasses.replace(state, dims=tuple(dim + (dim >= new) for dim in state.dims))


def _pad(node: fx.Node, flow: Flow) -> State:
    state = _common(node, flow)
    rank = len(shape_of(tensors(node)[0]))
    _refuse_along(node, state, [rank - 1 - n // 2 for n, size in enumerate(node.args[1]) if size])
    return state


def _common(node: fx.Node, flow: Flow) -> State:
    """The one state of all inputs."""
    reads = sorted(tensors(node), key=lambda read: qualified_name(read.target) in MAKERS)  # these are as the others are
    states = {read: known for read in reads if (known := flow.known(read)) is not None}
    for read in reads:
        if not any(isinstance(state, Sharded) for state in states.values()):
            states[read] = flow.read(read, node)
    state = next((known for known in states.values() if isinstance(known, Sharded)), None)
    if state is not None:
        for read in reads:
            if flow.known(read) is None:
                flow.require(read, dataclasses.replace(state, points=None), node)
            elif flow.known(read) != state:
                raise MixesTokens(node, "joins values with and without tokens")
        return state
    if PARTIAL in states.values():
        raise MixesTokens(node, "needs the sum over all tokens")
    return ROUTING if ROUTING in states.values() else REPLICATED


def _dims(node: fx.Node, like: fx.Node) -> list[int]:
    return [argument(node, "dim", 0) % len(shape_of(like))]


def _refuse_along(node: fx.Node, state: State, dims: Sequence[int]) -> None:
    """Raises MixesTokens if the tokens run along one of the dimensions."""
    if isinstance(state, Sharded) and set(dims).intersection(state.dims):
        raise MixesTokens(node, "takes, joins or pads a part of the tokens")


def _for_each_part(node: fx.Node, state: State) -> State:
    value = node.meta["val"]
    return (state,) * len(value) if isinstance(value, list | tuple) else state


def _diagonal(node: fx.Node, flow: Flow) -> State:
    state = read_first(node, flow)
    if not isinstance(state, Sharded):
        return state
    dims = _dims_of_diagonal(node)
    _refuse_along(node, state, dims)
    return without_dims(state, dims)


def _select_scatter(node: fx.Node, flow: Flow) -> State:
    return _scatter_part(node, flow, [argument(node, "dim") % len(shape_of(node.args[0]))])


def _diagonal_scatter(node: fx.Node, flow: Flow) -> State:
    return _scatter_part(node, flow, _dims_of_diagonal(node))


def _scatter_part(node: fx.Node, flow: Flow, gone: Sequence[int]) -> State:
    """Writes a part that lacks some dimensions of the base: `dim`, or the two of a diagonal, which it has last."""
    base, part = node.args[:2]
    state, written = flow.known(base), flow.known(part)
    if not isinstance(state, Sharded) and isinstance(written, Sharded):
        kept = [dim for dim in range(len(shape_of(base))) if dim not in gone]
        if written.dims[-1] >= len(kept):
            raise MixesTokens(node, "takes, joins or pads a part of the tokens")
        state = dataclasses.replace(written, dims=tuple(kept[dim] for dim in written.dims))
    if not isinstance(state, Sharded):
        state = read_all(node, flow)[0]
    if not isinstance(state, Sharded):
        flow.require(part, state, node)
        return state
    _refuse_along(node, state, gone)
    flow.require(base, state, node)
    flow.require(part, without_dims(state, gone), node)
    return state


def _dims_of_diagonal(node: fx.Node) -> Sequence[int]:
    rank = len(shape_of(node.args[0]))
    return [argument(node, name) % rank for name in ("dim1", "dim2")]


RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.slice, aten.split, aten.split_with_sizes, aten.slice_scatter, aten.cat), _slice),
    aten.select: _select,
    aten.unbind: _select,
    aten.slice_backward: _slice_backward,
    aten.select_backward: _select_backward,
    aten.constant_pad_nd: _pad,
    aten.diagonal: _diagonal,
    aten.select_scatter: _select_scatter,
    aten.diagonal_scatter: _diagonal_scatter,
}
