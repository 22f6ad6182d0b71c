"""How tokens pass through operators that only look at their input in another shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.tokens.nodes import dims_of, shape_of
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_first
from memgraph.facts.tokens.states import MixesTokens, Sharded, State, apart, without_dims, without_ones

aten = torch.ops.aten


def _view(node: fx.Node, flow: Flow) -> State:
    return _reshaped(node, read_first(node, flow), flow.tokens)


def _as_strided(node: fx.Node, flow: Flow) -> State:
    """A view, if it shows all entries in their order."""
    old, new = node.args[0].meta["val"], node.meta["val"]
    if not (old.is_contiguous() and new.is_contiguous() and old.numel() == new.numel()):
        raise MixesTokens(node, "picks by strides")
    return _reshaped(node, read_first(node, flow), flow.tokens)


def _reshaped(node: fx.Node, state: State, tokens: int) -> State:
    """The state of a view.  Raises MixesTokens if the tokens no longer have dimensions of their own."""
    old, new = shape_of(node.args[0]), shape_of(node)
    if not isinstance(state, Sharded):
        return state
    if apart(state, old):
        return _reshaped_apart(node, state, old, new)
    first = state.dims[0]
    before = math.prod(old[:first])
    start, product = 0, 1
    while product < before and start < len(new):
        product *= new[start]
        start += 1
    if product != before:
        raise MixesTokens(node, "merges the tokens with what is before them")
    product = 1
    for end in range(start, len(new)):
        product *= new[end]
        if product % tokens == 0:
            dims = without_ones(new, range(start, end + 1))
            return dataclasses.replace(state, dims=dims, factor=product // tokens)
        if tokens % product:
            break
    raise MixesTokens(node, "merges the tokens with what is after them")


def _reshaped_apart(node: fx.Node, state: Sharded, old: Sequence[int], new: Sequence[int]) -> State:
    """The same if other dimensions lie between those of the tokens: no dimension may merge with them."""
    dims: list[int] = []
    for before, after in _blocks(old, new):
        if not set(before).intersection(state.dims):
            continue
        parts = [dim for dim in after if new[dim] != 1]
        if {dim for dim in before if old[dim] != 1} - set(state.dims) or len(parts) > 1 and state.factor > 1:
            raise MixesTokens(node, "merges tokens that do not lie side by side")
        dims += parts
    return dataclasses.replace(state, dims=tuple(dims))


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of dimensions of two shapes that hold the same entries, in order."""
    i = j = 0
    while i < len(old) and j < len(new):
        first, other, one, two = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while one != two:
            if one < two:
                one, i = one * old[i], i + 1
            else:
                two, j = two * new[j], j + 1
        yield range(first, i), range(other, j)


def _permute(node: fx.Node, flow: Flow) -> State:
    return _permuted(node, flow, list(node.args[1]))


def _transpose(node: fx.Node, flow: Flow) -> State:
    return _swapped(node, flow, *node.args[1:3])


def _t(node: fx.Node, flow: Flow) -> State:
    return _swapped(node, flow, 0, -1)


def _swapped(node: fx.Node, flow: Flow, one: int, other: int) -> State:
    order = list(range(len(shape_of(node))))
    order[one], order[other] = order[other], order[one]
    return _permuted(node, flow, order)


def _permuted(node: fx.Node, flow: Flow, order: Sequence[int]) -> State:
    state = read_first(node, flow)
    if not isinstance(state, Sharded):
        return state
    places = dims_of(list(order), len(shape_of(node)))
    dims = tuple(places.index(dim) for dim in state.dims)
    if list(dims) != sorted(dims):
        raise MixesTokens(node, "puts the tokens into another order")
    return dataclasses.replace(state, dims=dims)


def _unsqueeze(node: fx.Node, flow: Flow) -> State:
    state = read_first(node, flow)
    if not isinstance(state, Sharded):
        return state
    new = node.args[1] % len(shape_of(node))
    return dataclasses.replace(state, dims=tuple(dim + (dim >= new) for dim in state.dims))


def _squeeze(node: fx.Node, flow: Flow) -> State:
    state, shape = read_first(node, flow), shape_of(node.args[0])
    if not isinstance(state, Sharded):
        return state
    asked = dims_of(node.args[1] if len(node.args) > 1 else None, len(shape))
    gone = [dim for dim in asked if shape[dim] == 1]
    if set(gone).intersection(state.dims):
        raise MixesTokens(node, "drops the dimension of the tokens")
    if len(node.args) == 1 and len(shape_of(node)) != len(shape) - len(gone):
        raise MixesTokens(node, "drops dimensions that memgraph cannot tell")
    return without_dims(state, gone)


def _expand(node: fx.Node, flow: Flow) -> State:
    state, old, new = read_first(node, flow), shape_of(node.args[0]), shape_of(node)
    if not isinstance(state, Sharded):
        return state
    shift = len(new) - len(old)
    dims = tuple(dim + shift for dim in state.dims)
    spread = [dim for dim in range(len(new)) if new[dim] != (old[dim - shift] if dim >= shift else 1)]
    if set(spread).intersection(dims):
        raise MixesTokens(node, "repeats a part of the tokens")
    return dataclasses.replace(state, dims=dims)


RULES: dict[Any, Rule] = {
    aten.view: _view,
    aten._unsafe_view: _view,
    aten.reshape: _view,
    aten.as_strided: _as_strided,
    aten.permute: _permute,
    aten.transpose: _transpose,
    aten.t: _t,
    aten.unsqueeze: _unsqueeze,
    aten.squeeze: _squeeze,
    aten.expand: _expand,
}
