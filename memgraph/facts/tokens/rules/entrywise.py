"""How tokens pass through operators that work entry by entry, along a dimension, or on shapes alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.tokens.states import (
    MAKERS,
    POINTWISE,
    ROUTING,
    SUM,
    WHOLE,
    Flow,
    Mixed,
    State,
    Tokens,
    apart,
    argument,
    normal,
    rule,
    settle,
    shape_of,
    source,
    tensors,
)


@rule("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask")
def _fake_quantize(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    for read in tensors(node)[1:]:
        flow.require(read, WHOLE, node)
    if isinstance(state, Tokens) and argument(node, "axis") in state.dims:
        raise Mixed(node, "has a scale for each token")
    return state, state


@rule("bucketize", "searchsorted")
def _bucketize(node: fx.Node, flow: Flow) -> State:
    """Each number among boundaries that are the same for all."""
    values, boundaries = node.args[:2] if short_name(node.target) == "bucketize" else node.args[1::-1]
    if len(shape_of(boundaries)) != 1 or argument(node, "sorter") is not None:
        raise Mixed(node, "has boundaries for each row")
    flow.require(boundaries, WHOLE, node)
    return flow.known(values) or flow.guess(values, node)


@rule("as_strided")
def _as_strided(node: fx.Node, flow: Flow) -> State:
    """As a view, where it is one of all entries in their order."""
    old, new = node.args[0].meta["val"], node.meta["val"]
    if not (old.is_contiguous() and new.is_contiguous() and old.numel() == new.numel()):
        raise Mixed(node, "picks by strides")
    return reshaped(node, source(node, flow), shape_of(node.args[0]), shape_of(node), flow.tokens)


@rule(POINTWISE)
def _pointwise(node: fx.Node, flow: Flow) -> State:
    out, reads = shape_of(node), tensors(node)
    states = {read: flow.known(read) for read in reads}
    wanted = flow.wanted(node)
    if isinstance(wanted, Tokens) and not any(isinstance(state, Tokens) for state in states.values()):
        for read in reads:  # the longest of them has what the output has
            shift = len(out) - len(shape_of(read))
            if min(wanted.dims) >= shift and all(shape_of(read)[dim - shift] == out[dim] for dim in wanted.dims):
                mine = dataclasses.replace(wanted, dims=tuple(dim - shift for dim in wanted.dims))
                states[read] = flow.require(read, mine, node)
                break
    if not any(isinstance(state, Tokens) for state in states.values()):
        for read in sorted(reads, key=lambda read: -math.prod(shape_of(read))):  # the others are as the longest says
            states[read] = states[read] or flow.guess(read, node)
            if isinstance(states[read], Tokens):
                break
    if SUM in states.values():
        raise Mixed(node, "needs the sum over all tokens")
    found = [(read, state) for read, state in states.items() if isinstance(state, Tokens)]
    if not found:
        return ROUTING if ROUTING in states.values() else WHOLE
    aligned = {_aligned(read, state, len(out)) for read, state in found}
    if len({(dims, state.factor, state.order) for dims, state in aligned}) > 1:
        raise Mixed(node, "meets one value with tokens along different dimensions")
    dims, state = aligned.pop()
    points = next((other.points for _, other in found if other.points), "")
    for read in reads:
        shape = shape_of(read)
        shift = len(out) - len(shape)
        sizes = [shape[dim - shift] if dim >= shift else 1 for dim in dims]
        if all(size == 1 for size in sizes) and any(out[dim] != 1 for dim in dims):
            if states[read] != ROUTING:
                flow.require(read, WHOLE, node)
        elif sizes == [out[dim] for dim in dims]:
            mine = Tokens(tuple(dim - shift for dim in dims), state.factor, state.order)
            known = states[read]
            flow.require(read, mine if known is None else known, node)
        else:
            flow.require(read, _spread(node, read, dims, state), node)
    return Tokens(dims, state.factor, state.order, points)


def _spread(node: fx.Node, read: fx.Node, dims: Sequence[int], state: Tokens) -> Tokens:
    """The state of a number for each sequence, or for each position, that meets tokens."""
    out, shape = shape_of(node), shape_of(read)
    shift = len(out) - len(shape)
    mine = tuple(dim - shift for dim in dims)
    several = any(size != 1 for dim, size in enumerate(shape) if dim not in mine)
    if min(mine) < 0 or several or not state.crosses or short_name(read.target) in MAKERS:
        raise Mixed(node, f"repeats {read.name} along a part of the tokens")
    return Tokens(mine, state.factor, spread=tuple(out[dim] for dim in dims))


def _aligned(read: fx.Node, state: Tokens, rank: int) -> tuple[tuple[int, ...], Tokens]:
    shift = rank - len(shape_of(read))
    return tuple(dim + shift for dim in state.dims), dataclasses.replace(state, points="", spread=())


@rule("_operator.getitem")
def _getitem(node: fx.Node, flow: Flow) -> State:
    whole = flow.known(node.args[0]) or flow.pull(node.args[0])
    if not isinstance(whole, tuple):
        raise Mixed(node, "takes a part of what is no tuple")
    return whole[node.args[1]]


def _dims(given: object, rank: int) -> tuple[int, ...]:
    if given is None or given == []:
        return tuple(range(rank))
    return tuple(dim % rank for dim in (given if isinstance(given, list | tuple) else [given]))


@rule(
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "any",
    "all",
    "argmax",
    "argmin",
    "var",
    "var_mean",
    "logsumexp",
    "max",
    "min",
    "aminmax",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
)
def _reduction(node: fx.Node, flow: Flow) -> State:
    state, shape = source(node, flow), shape_of(node.args[0])
    if not isinstance(state, Tokens):
        if state == SUM:
            raise Mixed(node, "needs the sum over all tokens")
        return state
    dims = _dims(argument(node, "dim"), len(shape))
    over = set(dims).intersection(state.dims)
    several = len(node.target._schema.returns)
    if over:
        if short_name(node.target) in ("sum", "mean") and over == set(state.dims) and not state.points:
            return SUM
        raise Mixed(node, "reduces over the tokens")
    kept = argument(node, "keepdim", False)
    moved = state if kept else without(state, dims)
    return moved if several == 1 else (moved,) * several


def without(state: Tokens, dims: Sequence[int]) -> Tokens:
    """The state of a value that lacks some dimensions which are not the tokens'."""
    places = tuple(dim - sum(gone < dim for gone in dims) for dim in state.dims)
    return dataclasses.replace(state, dims=places)


@rule(
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "cumsum",
    "topk",
    "flip",
    "prims::rev",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "glu",
    "glu_backward",
)
def _along(node: fx.Node, flow: Flow) -> State:
    states = settle(node, flow)
    several = len(node.target._schema.returns)
    if not any(isinstance(state, Tokens) for state in states):
        return states[0] if several == 1 else (states[0],) * several
    state = next(state for state in states if isinstance(state, Tokens))
    for read in tensors(node):
        flow.require(read, state, node)
    rank = len(shape_of(node.args[0]))
    if set(_dims(argument(node, "dim", argument(node, "dims", -1)), rank)).intersection(state.dims):
        raise Mixed(node, "runs along the tokens")
    return state if several == 1 else (state,) * several


@rule("view", "_unsafe_view", "reshape")
def _view(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    return reshaped(node, state, shape_of(node.args[0]), shape_of(node), flow.tokens)


def reshaped(node: fx.Node, state: State, old: Sequence[int], new: Sequence[int], tokens: int) -> State:
    """Where the tokens are after a view.  Raises Mixed where they are no longer by themselves."""
    if not isinstance(state, Tokens):
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
        raise Mixed(node, "merges the tokens with what is before them")
    product = 1
    for end in range(start, len(new)):
        product *= new[end]
        if product % tokens == 0:
            dims = normal(new, range(start, end + 1))
            return dataclasses.replace(state, dims=dims, factor=product // tokens)
        if tokens % product:
            break
    raise Mixed(node, "merges the tokens with what is after them")


def _reshaped_apart(node: fx.Node, state: Tokens, old: Sequence[int], new: Sequence[int]) -> State:
    """The same, where other dimensions lie between those of the tokens: each has to stay by itself."""
    dims: list[int] = []
    for before, after in _blocks(old, new):
        if not set(before).intersection(state.dims):
            continue
        parts = [dim for dim in after if new[dim] != 1]
        if {dim for dim in before if old[dim] != 1} - set(state.dims) or len(parts) > 1 and state.factor > 1:
            raise Mixed(node, "merges tokens that do not lie side by side")
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


@rule("permute", "transpose", "t")
def _permute(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    if not isinstance(state, Tokens):
        return state
    rank = len(shape_of(node))
    name = short_name(node.target)
    order = list(node.args[1]) if name == "permute" else list(range(rank))
    if name != "permute":
        one, other = (0, 1) if name == "t" else (node.args[1] % rank, node.args[2] % rank)
        order[one], order[other] = order[other], order[one]
    order = [dim % rank for dim in order]
    dims = tuple(order.index(dim) for dim in state.dims)
    if list(dims) != sorted(dims):
        raise Mixed(node, "puts the tokens into another order")
    return dataclasses.replace(state, dims=dims)


@rule("unsqueeze")
def _unsqueeze(node: fx.Node, flow: Flow) -> State:
    state = source(node, flow)
    if not isinstance(state, Tokens):
        return state
    new = node.args[1] % len(shape_of(node))
    return dataclasses.replace(state, dims=tuple(dim + (dim >= new) for dim in state.dims))


@rule("squeeze")
def _squeeze(node: fx.Node, flow: Flow) -> State:
    state, shape = source(node, flow), shape_of(node.args[0])
    if not isinstance(state, Tokens):
        return state
    asked = _dims(node.args[1] if len(node.args) > 1 else None, len(shape))
    gone = [dim for dim in asked if shape[dim] == 1]
    if set(gone).intersection(state.dims):
        raise Mixed(node, "drops the dimension of the tokens")
    if len(node.args) == 1 and len(shape_of(node)) != len(shape) - len(gone):
        raise Mixed(node, "drops dimensions that memgraph cannot tell")
    return without(state, gone)


@rule("expand")
def _expand(node: fx.Node, flow: Flow) -> State:
    state, old, new = source(node, flow), shape_of(node.args[0]), shape_of(node)
    if not isinstance(state, Tokens):
        return state
    shift = len(new) - len(old)
    dims = tuple(dim + shift for dim in state.dims)
    spread = [dim for dim in range(len(new)) if new[dim] != (old[dim - shift] if dim >= shift else 1)]
    if set(spread).intersection(dims):
        raise Mixed(node, "repeats a part of the tokens")
    return dataclasses.replace(state, dims=dims)
