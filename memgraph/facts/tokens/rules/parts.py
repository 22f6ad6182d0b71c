"""How tokens pass through operators that take, join or write parts along dimensions that are not the tokens'."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.tokens.rules.entrywise import without
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
    settle,
    shape_of,
    source,
    tensors,
)


@rule("slice", "select", "unbind", "split", "split_with_sizes", "slice_scatter", "constant_pad_nd",
      "slice_backward", "select_backward", "cat")  # fmt: skip
def _part(node: fx.Node, flow: Flow) -> State:
    """Operators along one dimension that is not the tokens'."""
    name = short_name(node.target)
    states = _settle_alike(node, flow)
    state = next((known for known in states if isinstance(known, Tokens)), None)
    outputs = len(node.meta["val"]) if isinstance(node.meta["val"], list | tuple) else 0
    if state is None:
        if SUM in states:
            raise Mixed(node, "needs the sum over all tokens")
        found = ROUTING if ROUTING in states else WHOLE
        return (found,) * outputs if outputs else found
    rank = len(shape_of(tensors(node)[0]))
    if name == "constant_pad_nd":
        padded = [rank - 1 - n // 2 for n, size in enumerate(node.args[1]) if size]
    else:
        padded = [argument(node, "dim", 0) % len(shape_of(node) if "backward" in name else shape_of(tensors(node)[0]))]
    if name == "select_backward":
        moved = tuple(dim + (dim >= padded[0]) for dim in state.dims)
        return dataclasses.replace(state, dims=moved)
    if set(padded).intersection(state.dims):
        raise Mixed(node, "takes, joins or pads a part of the tokens")
    if name in ("select", "unbind"):
        state = without(state, padded)
    return (state,) * outputs if outputs else state


def _settle_alike(node: fx.Node, flow: Flow) -> list[State]:
    reads = tensors(node)
    state = next((known for read in reads if isinstance(known := flow.known(read), Tokens)), None)
    if state is None:
        return settle(node, flow)
    for read in reads:
        if flow.known(read) is None:
            flow.require(read, dataclasses.replace(state, points=""), node)
        elif flow.known(read) != state:
            raise Mixed(node, "joins values with and without tokens")
    return [state]


@rule("diagonal")
def _diagonal(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    if not isinstance(state, Tokens):
        return state
    gone = _dims_of_diagonal(node)
    if set(gone).intersection(state.dims):
        raise Mixed(node, "takes, joins or pads a part of the tokens")
    return without(state, gone)


@rule("select_scatter", "diagonal_scatter")
def _scatter_part(node: fx.Node, flow: Flow) -> State:
    """Writes what lacks a dimension, or has its own for two."""
    base, part = node.args[:2]
    rank = len(shape_of(base))
    gone = _dims_of_diagonal(node) if "diagonal" in short_name(node.target) else [argument(node, "dim") % rank]
    state, written = flow.known(base), flow.known(part)
    if not isinstance(state, Tokens) and isinstance(written, Tokens):
        kept = [dim for dim in range(rank) if dim not in gone]
        if written.dims[-1] >= len(kept):
            raise Mixed(node, "takes, joins or pads a part of the tokens")
        state = dataclasses.replace(written, dims=tuple(kept[dim] for dim in written.dims))
    if not isinstance(state, Tokens):
        state = settle(node, flow)[0]
    if not isinstance(state, Tokens):
        flow.require(part, state, node)
        return state
    if set(gone).intersection(state.dims):
        raise Mixed(node, "takes, joins or pads a part of the tokens")
    flow.require(base, state, node)
    flow.require(part, without(state, gone), node)
    return state


def _dims_of_diagonal(node: fx.Node) -> Sequence[int]:
    rank = len(shape_of(node.args[0]))
    return [argument(node, name) % rank for name in ("dim1", "dim2")]
