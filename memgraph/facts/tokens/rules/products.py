"""How tokens pass through matrix products, and through the routing to experts: sort, counts, grouped products."""

from __future__ import annotations

import dataclasses

from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.tokens.states import (
    ROUTING,
    SUM,
    WHOLE,
    Flow,
    Mixed,
    State,
    Tokens,
    argument,
    rule,
    shape_of,
    source,
)


@rule("sort", "argsort")
def _sort(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    if not isinstance(state, Tokens):
        raise Mixed(node, "sorts what has no tokens")
    rank = len(shape_of(node.args[0]))
    dim = argument(node, "dim", -1) % rank
    if dim not in state.dims:
        return (state, state) if short_name(node.target) == "sort" else state
    if rank != 1 or not state.crosses:
        raise Mixed(node, "sorts along the tokens")
    values = Tokens(state.dims, state.factor, "routed")
    positions = dataclasses.replace(values, points="tokens")
    return (values, positions) if short_name(node.target) == "sort" else positions


@rule("histc", "bincount")
def _counts(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    if not isinstance(state, Tokens):
        raise Mixed(node, "counts what has no tokens")
    return ROUTING


@rule("mm")
def _mm(node: fx.Node, flow: Flow) -> State:
    return _product(node, flow, node.args[0], node.args[1], rows=0)


@rule("addmm")
def _addmm(node: fx.Node, flow: Flow) -> State:
    state = _product(node, flow, node.args[1], node.args[2], rows=0)
    if state == SUM:
        raise Mixed(node, "adds something to a sum over tokens")
    bias, rank = node.args[0], len(shape_of(node.args[0]))
    if isinstance(state, Tokens) and rank == 2 and shape_of(bias)[state.dims[0]] != 1:
        flow.require(bias, state, node)
    else:
        flow.require(bias, WHOLE, node)
    return state


@rule("bmm")
def _bmm(node: fx.Node, flow: Flow) -> State:
    a, b = node.args[:2]
    for one, other in ((a, b), (b, a)):
        state = flow.known(one)
        if isinstance(state, Tokens) and 0 in state.dims:
            if state.dims != (0,):
                raise Mixed(node, "has tokens along its batch and its rows")
            flow.require(other, state, node)
            return state
    return _product(node, flow, a, b, rows=1)


def _product(node: fx.Node, flow: Flow, a: fx.Node, b: fx.Node, rows: int) -> State:
    """A matrix product of dimensions rows and rows + 1."""
    left, right = flow.known(a), flow.known(b)
    if left is None and right is None:
        left = flow.guess(a, node)
        right = flow.known(b)
    if isinstance(left, Tokens) and left.dims == (rows + 1,) or isinstance(right, Tokens) and right.dims == (rows,):
        wanted = left if isinstance(left, Tokens) else dataclasses.replace(right, dims=(rows + 1,))
        flow.require(a, wanted, node)
        flow.require(b, dataclasses.replace(wanted, dims=(rows,)), node)
        if wanted.points:
            raise Mixed(node, "multiplies positions")
        return SUM
    if SUM in (left, right) or ROUTING in (left, right):
        raise Mixed(node, "needs the sum over all tokens")
    if isinstance(left, Tokens):
        flow.require(b, WHOLE, node)
        return left if left.dims == (rows,) else _refuse(node)
    if isinstance(right, Tokens):
        flow.require(a, WHOLE, node)
        return right if right.dims == (rows + 1,) else _refuse(node)
    flow.require(a, WHOLE, node)
    flow.require(b, WHOLE, node)
    return WHOLE


def _refuse(node: fx.Node) -> State:
    raise Mixed(node, "multiplies along a part of the tokens")


@rule("_grouped_mm", "transformers::grouped_mm_fallback")
def _grouped(node: fx.Node, flow: Flow) -> State:
    a, b = node.args[:2]
    offsets = argument(node, "offs")
    if offsets is None or argument(node, "bias") is not None:
        raise Mixed(node, "has no offsets, or a bias")
    if (flow.known(offsets) or flow.pull(offsets)) != ROUTING:
        raise Mixed(node, "has offsets of all tokens together")
    if len(shape_of(a)) == len(shape_of(b)) == 2:  # the gradient of the weights
        rows = _routed(b, node, flow, 0)
        flow.require(a, dataclasses.replace(rows, dims=(1,)), node)
        return SUM
    flow.require(b, WHOLE, node)
    return _routed(a, node, flow, 0)


@rule("transformers::grouped_mm_fallback_backward")
def _grouped_backward(node: fx.Node, flow: Flow) -> State:
    """transformers' operator for what has no aten._grouped_mm: (rows, weight, offsets, gradient) -> two gradients."""
    rows, weight, offsets, gradient = node.args[:4]
    if (flow.known(offsets) or flow.pull(offsets)) != ROUTING:
        raise Mixed(node, "has offsets of all tokens together")
    flow.require(weight, WHOLE, node)
    state = _routed(rows, node, flow, 0)
    flow.require(gradient, state, node)
    return state, SUM


def _routed(rows: fx.Node, node: fx.Node, flow: Flow, dim: int) -> Tokens:
    state = flow.known(rows) or flow.pull(rows)
    if not isinstance(state, Tokens) or state.dims != (dim,) or state.order != "routed" or state.points:
        raise Mixed(node, "multiplies rows that are not sorted by expert")
    return state
