"""How tokens pass through operators that reduce a dimension, or run along one."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import argument
from memgraph.facts.tokens.nodes import dims_of, output_count, shape_of, tensors
from memgraph.facts.tokens.rules.flow import Flow, Rule, read_all, read_first
from memgraph.facts.tokens.states import PARTIAL, MixesTokens, Sharded, State, without_dims

aten, prims = torch.ops.aten, torch.ops.prims


def _sum(node: fx.Node, flow: Flow) -> State:
    """A sum or a mean.  Over the tokens it is partial: each shard has a part of it."""
    state = read_first(node, flow)
    if isinstance(state, Sharded):
        over = set(dims_of(argument(node, "dim"), len(shape_of(node.args[0])))).intersection(state.dims)
        if over == set(state.dims) and not state.points:
            return PARTIAL
    return _reduced(node, state)


def _reduce(node: fx.Node, flow: Flow) -> State:
    return _reduced(node, read_first(node, flow))


def _reduced(node: fx.Node, state: State) -> State:
    """The state after a reduction within each token."""
    if state == PARTIAL:
        raise MixesTokens(node, "needs the sum over all tokens")
    if not isinstance(state, Sharded):
        return state
    dims = dims_of(argument(node, "dim"), len(shape_of(node.args[0])))
    if set(dims).intersection(state.dims):
        raise MixesTokens(node, "reduces over the tokens")
    kept = state if argument(node, "keepdim", False) else without_dims(state, dims)
    return _for_each_output(node, kept)


def _along(node: fx.Node, flow: Flow) -> State:
    """The output has the shape of the inputs; each entry depends on those along one dimension."""
    states = read_all(node, flow)
    state = next((state for state in states if isinstance(state, Sharded)), None)
    if state is None:
        return _for_each_output(node, states[0])
    for read in tensors(node):
        flow.require(read, state, node)
    along = argument(node, "dim", argument(node, "dims", -1))
    if set(dims_of(along, len(shape_of(node.args[0])))).intersection(state.dims):
        raise MixesTokens(node, "runs along the tokens")
    return _for_each_output(node, state)


def _for_each_output(node: fx.Node, state: State) -> State:
    count = output_count(node)
    return state if count == 1 else (state,) * count


_REDUCTIONS = (
    aten.amax, aten.amin, aten.max, aten.min, aten.aminmax, aten.argmax, aten.argmin, aten.any, aten.all, aten.prod,
    aten.var, aten.var_mean, aten.logsumexp, aten.median, aten.nanmedian, aten.mode, aten.kthvalue,
)  # fmt: skip
_ALONG = (
    aten._softmax, aten._log_softmax, aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp, aten.topk, aten.glu, aten.glu_backward,
    aten.flip, prims.rev,
)  # fmt: skip
RULES: dict[Any, Rule] = {
    aten.sum: _sum,
    aten.mean: _sum,
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ALONG, _along),
}
