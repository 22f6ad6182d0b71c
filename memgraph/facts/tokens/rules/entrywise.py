"""How tokens pass through operators that work entry by entry."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import argument, qualified_name
from memgraph.facts.tokens.kinds import MAKERS, SAME_SHAPE
from memgraph.facts.tokens.nodes import shape_of, tensors
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_first
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, ROUTING, MixesTokens, Sharded, State

aten = torch.ops.aten


def pointwise(node: fx.Node, flow: Flow) -> State:
    """An operator whose inputs are broadcast to the shape of its output."""
    out, reads = shape_of(node), tensors(node)
    states = _input_states(node, flow, reads)
    if PARTIAL in states.values():
        raise MixesTokens(node, "needs the sum over all tokens")
    found = [(read, state) for read, state in states.items() if isinstance(state, Sharded)]
    if not found:
        return ROUTING if ROUTING in states.values() else REPLICATED
    dims, state = _common(node, found)
    for read in reads:
        shape = shape_of(read)
        shift = len(out) - len(shape)
        sizes = [shape[dim - shift] if dim >= shift else 1 for dim in dims]
        if all(size == 1 for size in sizes) and any(out[dim] != 1 for dim in dims):
            if states[read] != ROUTING:
                flow.require(read, REPLICATED, node)
        elif sizes == [out[dim] for dim in dims]:
            own = Sharded(tuple(dim - shift for dim in dims), state.factor, state.order)
            known = states[read]
            flow.require(read, own if known is None else known, node)
        else:
            flow.require(read, _spread(node, read, dims, state), node)
    points = next((other.points for _, other in found if other.points), None)
    return Sharded(dims, state.factor, state.order, points)


def _input_states(node: fx.Node, flow: Flow, reads: Sequence[fx.Node]) -> dict[fx.Node, State | None]:
    """The states of the inputs.  If no known one is sharded, one input gets the state that a reader asks for."""
    states = {read: flow.known(read) for read in reads}
    asked = flow.asked(node)
    if isinstance(asked, Sharded) and not _any_sharded(states.values()):
        for read in reads:
            own = _as_output(shape_of(node), shape_of(read), asked)
            if own is not None:
                states[read] = flow.require(read, own, node)
                break
    if not _any_sharded(states.values()):
        for read in sorted(reads, key=lambda read: -math.prod(shape_of(read))):  # the longest input decides
            states[read] = states[read] or flow.read(read, node)
            if isinstance(states[read], Sharded):
                break
    return states


def _any_sharded(states: Any) -> bool:
    return any(isinstance(state, Sharded) for state in states)


def _as_output(out: Sequence[int], shape: Sequence[int], state: Sharded) -> Sharded | None:
    """The state of an input that has all tokens of an output in `state`; None if it does not have them."""
    shift = len(out) - len(shape)
    if min(state.dims) >= shift and all(shape[dim - shift] == out[dim] for dim in state.dims):
        return dataclasses.replace(state, dims=tuple(dim - shift for dim in state.dims))
    return None


def _common(node: fx.Node, found: Sequence[tuple[fx.Node, Sharded]]) -> tuple[tuple[int, ...], Sharded]:
    """The dimensions of the output along which all sharded inputs have their tokens, and what else they agree on."""
    aligned = {_aligned(read, state, len(shape_of(node))) for read, state in found}
    if len({(dims, state.factor, state.order) for dims, state in aligned}) > 1:
        raise MixesTokens(node, "meets one value with tokens along different dimensions")
    return aligned.pop()


def _aligned(read: fx.Node, state: Sharded, rank: int) -> tuple[tuple[int, ...], Sharded]:
    shift = rank - len(shape_of(read))
    return tuple(dim + shift for dim in state.dims), dataclasses.replace(state, points=None, spread=())


def _spread(node: fx.Node, read: fx.Node, dims: Sequence[int], state: Sharded) -> Sharded:
    """The state of an input with a number for each sequence, or for each position, next to sharded inputs."""
    out, shape = shape_of(node), shape_of(read)
    shift = len(out) - len(shape)
    own = tuple(dim - shift for dim in dims)
    several = any(size != 1 for dim, size in enumerate(shape) if dim not in own)
    if min(own) < 0 or several or not state.crosses or qualified_name(read.target) in MAKERS:
        raise MixesTokens(node, f"repeats {read.name} along a part of the tokens")
    return Sharded(own, state.factor, spread=tuple(out[dim] for dim in dims))


def is_pointwise(target: Any) -> bool:
    """Whether torch tags an operator pointwise, or its output has a row for each row of its inputs all the same."""
    schema = getattr(target, "_schema", None)
    tagged = schema is not None and not schema.is_mutable and torch.Tag.pointwise in target.tags
    return tagged or qualified_name(target) in SAME_SHAPE


def getitem(node: fx.Node, flow: Flow) -> State:
    """One of several outputs."""
    whole = flow.computed(node.args[0])
    if not isinstance(whole, tuple):
        raise MixesTokens(node, "takes a part of what is no tuple")
    return whole[node.args[1]]


def _fake_quantize(node: fx.Node, flow: Flow) -> State:
    """Quantized values and a mask, by scales that are the same for all tokens."""
    state = read_first(node, flow)
    for read in tensors(node)[1:]:
        flow.require(read, REPLICATED, node)
    if isinstance(state, Sharded) and argument(node, "axis") in state.dims:
        raise MixesTokens(node, "has a scale for each token")
    return state, state


def _bucketize(node: fx.Node, flow: Flow) -> State:
    return _buckets(node, flow, values=node.args[0], boundaries=node.args[1])


def _searchsorted(node: fx.Node, flow: Flow) -> State:
    return _buckets(node, flow, values=node.args[1], boundaries=node.args[0])


def _buckets(node: fx.Node, flow: Flow, values: fx.Node, boundaries: fx.Node) -> State:
    """Each number among boundaries that are the same for all tokens."""
    if len(shape_of(boundaries)) != 1 or argument(node, "sorter") is not None:
        raise MixesTokens(node, "has boundaries for each row")
    flow.require(boundaries, REPLICATED, node)
    return flow.read(values, node)


RULES: dict[Any, Rule] = {
    operator.getitem: getitem,
    aten.fake_quantize_per_tensor_affine_cachemask: _fake_quantize,
    aten.fake_quantize_per_channel_affine_cachemask: _fake_quantize,
    aten.bucketize: _bucketize,
    aten.searchsorted: _searchsorted,
}
