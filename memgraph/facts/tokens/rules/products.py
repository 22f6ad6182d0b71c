"""How tokens pass through matrix products, and through the routing to experts: sort, counts, grouped products."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import argument
from memgraph.facts.tokens.kinds import GROUPED_FALLBACK
from memgraph.facts.tokens.nodes import shape_of
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_first
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, ROUTING, MixesTokens, RowOrder, Sharded, State

aten = torch.ops.aten


def _sort(node: fx.Node, flow: Flow) -> State:
    return _sorted(node, flow)


def _argsort(node: fx.Node, flow: Flow) -> State:
    return _sorted(node, flow)[1]


def _sorted(node: fx.Node, flow: Flow) -> tuple[Sharded, Sharded]:
    """The states of the sorted values and of their positions."""
    state = read_first(node, flow)
    if not isinstance(state, Sharded):
        raise MixesTokens(node, "sorts what has no tokens")
    rank = len(shape_of(node.args[0]))
    if argument(node, "dim", -1) % rank not in state.dims:
        return state, state
    if rank != 1 or not state.crosses:
        raise MixesTokens(node, "sorts along the tokens")
    values = Sharded(state.dims, state.factor, RowOrder.ROUTED)
    return values, dataclasses.replace(values, points=RowOrder.TOKENS)


def _counts(node: fx.Node, flow: Flow) -> State:
    state = read_first(node, flow)
    if not isinstance(state, Sharded):
        raise MixesTokens(node, "counts what has no tokens")
    return ROUTING


def _mm(node: fx.Node, flow: Flow) -> State:
    return _product(node, flow, node.args[0], node.args[1], rows=0)


def _addmm(node: fx.Node, flow: Flow) -> State:
    state = _product(node, flow, node.args[1], node.args[2], rows=0)
    if state == PARTIAL:
        raise MixesTokens(node, "adds something to a sum over tokens")
    bias, rank = node.args[0], len(shape_of(node.args[0]))
    if isinstance(state, Sharded) and rank == 2 and shape_of(bias)[state.dims[0]] != 1:
        flow.require(bias, state, node)
    else:
        flow.require(bias, REPLICATED, node)
    return state


def _bmm(node: fx.Node, flow: Flow) -> State:
    a, b = node.args[:2]
    for one, other in ((a, b), (b, a)):
        state = flow.known(one)
        if isinstance(state, Sharded) and 0 in state.dims:
            if state.dims != (0,):
                raise MixesTokens(node, "has tokens along its batch and its rows")
            flow.require(other, state, node)
            return state
    return _product(node, flow, a, b, rows=1)


def _product(node: fx.Node, flow: Flow, a: fx.Node, b: fx.Node, rows: int) -> State:
    """A matrix product.  rows: the dimension of rows; the next one is that of columns."""
    left, right = flow.known(a), flow.known(b)
    if left is None and right is None:
        left = flow.read(a, node)
        right = flow.known(b)
    summed = _summed(left, right, rows)
    if summed is not None:
        flow.require(a, dataclasses.replace(summed, dims=(rows + 1,)), node)
        flow.require(b, summed, node)
        if summed.points:
            raise MixesTokens(node, "multiplies positions")
        return PARTIAL
    if PARTIAL in (left, right) or ROUTING in (left, right):
        raise MixesTokens(node, "needs the sum over all tokens")
    if isinstance(left, Sharded):
        flow.require(b, REPLICATED, node)
        return left if left.dims == (rows,) else _refuse(node)
    if isinstance(right, Sharded):
        flow.require(a, REPLICATED, node)
        return right if right.dims == (rows + 1,) else _refuse(node)
    flow.require(a, REPLICATED, node)
    flow.require(b, REPLICATED, node)
    return REPLICATED


def _summed(left: State | None, right: State | None, rows: int) -> Sharded | None:
    """The state of the right factor if the product sums over the tokens, else None."""
    if isinstance(left, Sharded) and left.dims == (rows + 1,):
        return dataclasses.replace(left, dims=(rows,))
    return right if isinstance(right, Sharded) and right.dims == (rows,) else None


def _refuse(node: fx.Node) -> State:
    raise MixesTokens(node, "multiplies along a part of the tokens")


def _grouped(node: fx.Node, flow: Flow) -> State:
    a, b = node.args[:2]
    offsets = argument(node, "offs")
    if offsets is None or argument(node, "bias") is not None:
        raise MixesTokens(node, "has no offsets, or a bias")
    if flow.computed(offsets) != ROUTING:
        raise MixesTokens(node, "has offsets of all tokens together")
    if len(shape_of(a)) == len(shape_of(b)) == 2:  # the gradient of the weights
        rows = _routed(b, node, flow)
        flow.require(a, dataclasses.replace(rows, dims=(1,)), node)
        return PARTIAL
    flow.require(b, REPLICATED, node)
    return _routed(a, node, flow)


def _grouped_backward(node: fx.Node, flow: Flow) -> State:
    """(rows, weight, offsets, gradient) -> the gradients of rows and weight."""
    rows, weight, offsets, gradient = node.args[:4]
    if flow.computed(offsets) != ROUTING:
        raise MixesTokens(node, "has offsets of all tokens together")
    flow.require(weight, REPLICATED, node)
    state = _routed(rows, node, flow)
    flow.require(gradient, state, node)
    return state, PARTIAL


def _routed(rows: fx.Node, node: fx.Node, flow: Flow) -> Sharded:
    """The state of rows that are sorted by expert."""
    state = flow.computed(rows)
    if not isinstance(state, Sharded) or state.dims != (0,) or state.order != RowOrder.ROUTED or state.points:
        raise MixesTokens(node, "multiplies rows that are not sorted by expert")
    return state


RULES: dict[Any, Rule] = {
    aten.sort: _sort,
    aten.argsort: _argsort,
    aten.histc: _counts,
    aten.bincount: _counts,
    aten.mm: _mm,
    aten.addmm: _addmm,
    aten.bmm: _bmm,
    aten._grouped_mm: _grouped,
    GROUPED_FALLBACK: _grouped,
    f"{GROUPED_FALLBACK}_backward": _grouped_backward,
}
