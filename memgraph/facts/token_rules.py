"""How the token dimension passes through each operator, and why an operator stops it.

A rule gets a node and a `Flow`; it asks for the states of the node's inputs, requires states of those that are not
known yet, and returns the state of the output (a tuple of them where there are several). It raises Mixed where a
token's output needs other tokens in any other way than as a sum.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from memgraph.facts.operators import short_name


class Mixed(Exception):
    """An operator that a shard of the tokens cannot run by itself.  node: which.  reason: a phrase about it."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(f"{node.name}: {short_name(node.target)} {reason}")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A value with a slice for each shard.

    dims: the dimensions that the tokens run along, row-major, those of size 1 left out. factor: entries a token.
    order: "tokens", or "routed" where a sort has put the rows of a shard into another order (experts).
    points: for integers that are positions of rows, the order that they point into; "" for everything else.
    """

    dims: tuple[int, ...]
    factor: int = 1
    order: str = "tokens"
    points: str = ""

    @property
    def crosses(self) -> bool:
        """Whether slices of the shards, side by side, are the whole."""
        return self.order == "tokens" and not self.points


@dataclasses.dataclass(frozen=True)
class Whole:
    """A value that is the same for all shards."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """A value that is the sum of what the shards have."""


@dataclasses.dataclass(frozen=True)
class Routing:
    """What only the operators of one shard may read: how many of its rows go to each expert."""


WHOLE, SUM, ROUTING = Whole(), Sum(), Routing()
State = Any  # Tokens, Whole, Sum, Routing, or a tuple of them


class Flow(Protocol):
    """What a rule may ask for.  tokens: how many there are in all shards."""

    tokens: int

    def known(self, node: fx.Node) -> State | None: ...
    def wanted(self, node: fx.Node) -> State | None: ...
    def require(self, node: fx.Node, state: State, reader: fx.Node) -> State: ...
    def guess(self, node: fx.Node, reader: fx.Node) -> State: ...
    def pull(self, node: fx.Node) -> State: ...


Rule = Callable[[fx.Node, Flow], State]
RULES: dict[str, Rule] = {}
# Where an operator is told the size of its output, that argument's place.
SIZED = {"view": 1, "_unsafe_view": 1, "reshape": 1, "expand": 1, "full": 0, "empty": 0, "zeros": 0, "ones": 0}
SIZED |= {"slice_backward": 1, "select_backward": 1, "new_zeros": 1, "new_empty": 1, "new_full": 1, "new_ones": 1}
LENGTHS = frozenset(("iota", "arange"))
# Constants, and 0, 1, 2, ...: made anew for each shard.
MAKERS = frozenset(("full", "empty", "zeros", "ones", "scalar_tensor", *LENGTHS))
SAME_SHAPE = frozenset(
    "clone convert_element_type _to_copy where fma rsqrt copy lift_fresh_copy zeros_like ones_like full_like empty_like "
    "device_put".split()
)


def rule(*names: str) -> Callable[[Rule], Rule]:
    def put(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return put


def rule_of(node: fx.Node) -> Rule:
    """The rule of a node's operator.  Raises Mixed where there is none."""
    name = short_name(node.target)
    if node.target is operator.getitem:
        return _getitem
    if name in RULES:
        return RULES[name]
    schema = getattr(node.target, "_schema", None)
    if schema is not None and not schema.is_mutable:
        if torch.Tag.pointwise in node.target.tags or name in SAME_SHAPE:
            return _pointwise
        if schema.name.startswith("prims::") and len(schema.returns) == 1 and "inductor" not in name:
            return _pointwise
    if "attention" in name or "convolution" in name or "fft" in name:
        raise Mixed(node, "mixes tokens")
    raise Mixed(node, "has no rule for how tokens pass through it")


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def is_tensor(item: object) -> bool:
    return isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor)


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument by its name in the operator's schema."""
    for place, known in enumerate(node.target._schema.arguments):
        if known.name == name:
            if place < len(node.args):
                return node.args[place]
            return node.kwargs.get(name, known.default_value if known.has_default_value() else default)
    return default


def normal(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The dimensions without those of size 1, as long as one is left."""
    kept = tuple(dim for dim in dims if shape[dim] != 1)
    return kept or tuple(dims[-1:])


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [read for read in node.all_input_nodes if is_tensor(read)]


def _settle(node: fx.Node, flow: Flow) -> list[State]:
    """The states of all tensors that a node reads, guessed where nothing decides."""
    return [flow.known(read) or flow.guess(read, node) for read in _tensors(node)]


def _source(node: fx.Node, flow: Flow) -> State:
    """The state of an operator's first input."""
    read = node.args[0]
    return flow.known(read) or flow.guess(read, node)


def _pointwise(node: fx.Node, flow: Flow) -> State:
    out, reads = shape_of(node), _tensors(node)
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
        states = {read: state or flow.guess(read, node) for read, state in states.items()}
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
            if not isinstance(states[read], Routing):
                flow.require(read, WHOLE, node)
        elif sizes == [out[dim] for dim in dims]:
            mine = Tokens(tuple(dim - shift for dim in dims), state.factor, state.order)
            known = states[read]
            flow.require(read, mine if known is None else known, node)
        else:
            raise Mixed(node, f"repeats {read.name} along a part of the tokens")
    return Tokens(dims, state.factor, state.order, points)


def _aligned(read: fx.Node, state: Tokens, rank: int) -> tuple[tuple[int, ...], Tokens]:
    shift = rank - len(shape_of(read))
    return tuple(dim + shift for dim in state.dims), dataclasses.replace(state, points="")


def _getitem(node: fx.Node, flow: Flow) -> State:
    whole = flow.known(node.args[0]) or flow.pull(node.args[0])
    if not isinstance(whole, tuple):
        raise Mixed(node, "takes a part of what is no tuple")
    return whole[node.args[1]]


def _dims(given: object, rank: int) -> tuple[int, ...]:
    if given is None or given == []:
        return tuple(range(rank))
    return tuple(dim % rank for dim in (given if isinstance(given, list | tuple) else [given]))


@rule("sum", "mean", "amax", "amin", "prod", "any", "all", "argmax", "argmin", "var", "var_mean", "logsumexp", "max", "min")
def _reduction(node: fx.Node, flow: Flow) -> State:
    state, shape = _source(node, flow), shape_of(node.args[0])
    if not isinstance(state, Tokens):
        if state == SUM:
            raise Mixed(node, "needs the sum over all tokens")
        return state
    dims = _dims(argument(node, "dim"), len(shape))
    over = set(dims).intersection(state.dims)
    several = len(node.target._schema.returns)
    if over:
        if short_name(node.target) == "sum" and over == set(state.dims) and not state.points:
            return SUM
        raise Mixed(node, "reduces over the tokens")
    kept = argument(node, "keepdim", False)
    moved = state if kept else _without(state, dims)
    return moved if several == 1 else (moved,) * several


def _without(state: Tokens, dims: Sequence[int]) -> Tokens:
    places = tuple(dim - sum(gone < dim for gone in dims) for dim in state.dims)
    return dataclasses.replace(state, dims=places)


@rule("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "cumsum", "topk", "flip", "cumprod")
def _along(node: fx.Node, flow: Flow) -> State:
    states = _settle(node, flow)
    several = len(node.target._schema.returns)
    if not any(isinstance(state, Tokens) for state in states):
        return states[0] if several == 1 else (states[0],) * several
    state = next(state for state in states if isinstance(state, Tokens))
    for read in _tensors(node):
        flow.require(read, state, node)
    rank = len(shape_of(node.args[0]))
    if set(_dims(argument(node, "dim", argument(node, "dims", -1)), rank)).intersection(state.dims):
        raise Mixed(node, "runs along the tokens")
    return state if several == 1 else (state,) * several


@rule("sort", "argsort")
def _sort(node: fx.Node, flow: Flow) -> State:
    state = _source(node, flow)
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
    state = _source(node, flow)
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


@rule("_grouped_mm", "grouped_mm_fallback")
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


@rule("grouped_mm_fallback_backward")
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


@rule("index", "_unsafe_index")
def _index(node: fx.Node, flow: Flow) -> State:
    x, where = node.args[0], _positions(node, flow, node.args[1])
    rank = len(shape_of(node.args[1][0]))
    if where.points:
        rows = Tokens((0,), _factor(x, flow, node), where.points)
        known = flow.known(x)
        rows = dataclasses.replace(rows, points=known.points) if isinstance(known, Tokens) else rows
        flow.require(x, rows, node)
        return dataclasses.replace(where, points=rows.points)
    state = flow.known(x)
    if isinstance(state, Tokens):
        raise Mixed(node, "picks rows among all tokens")
    flow.require(x, WHOLE, node)
    return where if rank >= 1 else _refuse(node)


@rule("index_put", "_unsafe_index_put")
def _index_put(node: fx.Node, flow: Flow) -> State:
    base, indices, added = node.args[:3]
    where = _positions(node, flow, indices)
    if is_tensor(added) and shape_of(added):
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
    if not argument(node, "accumulate", False) or not _zero(base) or points:
        raise Mixed(node, "writes rows of all tokens over one another")
    flow.require(base, WHOLE, node)
    return SUM


def _zero(node: fx.Node) -> bool:
    return short_name(node.target) == "full" and node.args[1] == 0 or short_name(node.target) == "zeros"


def _positions(node: fx.Node, flow: Flow, indices: Any) -> Tokens:
    """The state of the one index along the first dimension."""
    if len(indices) != 1 or not is_tensor(indices[0]):
        raise Mixed(node, "picks along more than its first dimension")
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


@rule("embedding")
def _embedding(node: fx.Node, flow: Flow) -> State:
    weight, ids = node.args[:2]
    state = flow.known(ids) or flow.guess(ids, node)
    flow.require(weight, WHOLE, node)
    if isinstance(state, Tokens) and state.points:
        raise Mixed(node, "picks rows among all tokens")
    return state


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def _gather(node: fx.Node, flow: Flow) -> State:
    reads = _tensors(node)
    state = next((known for read in reads if isinstance(known := flow.known(read), Tokens)), None)
    if state is None:
        states = _settle(node, flow)
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


@rule("view", "_unsafe_view", "reshape")
def _view(node: fx.Node, flow: Flow) -> State:
    state = _source(node, flow)
    return reshaped(node, state, shape_of(node.args[0]), shape_of(node), flow.tokens)


def reshaped(node: fx.Node, state: State, old: Sequence[int], new: Sequence[int], tokens: int) -> State:
    """Where the tokens are after a view.  Raises Mixed where they are no longer by themselves."""
    if not isinstance(state, Tokens):
        return state
    first, last = state.dims[0], state.dims[-1]
    if [dim for dim in range(first, last + 1) if old[dim] != 1] != list(normal(old, state.dims)) and len(state.dims) > 1:
        raise Mixed(node, "merges tokens that do not lie side by side")
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


@rule("permute", "transpose", "t")
def _permute(node: fx.Node, flow: Flow) -> State:
    state = _source(node, flow)
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
    state = _source(node, flow)
    if not isinstance(state, Tokens):
        return state
    new = node.args[1] % len(shape_of(node))
    return dataclasses.replace(state, dims=tuple(dim + (dim >= new) for dim in state.dims))


@rule("squeeze")
def _squeeze(node: fx.Node, flow: Flow) -> State:
    state, shape = _source(node, flow), shape_of(node.args[0])
    if not isinstance(state, Tokens):
        return state
    asked = _dims(node.args[1] if len(node.args) > 1 else None, len(shape))
    gone = [dim for dim in asked if shape[dim] == 1]
    if set(gone).intersection(state.dims):
        raise Mixed(node, "drops the dimension of the tokens")
    if len(node.args) == 1 and len(shape_of(node)) != len(shape) - len(gone):
        raise Mixed(node, "drops dimensions that memgraph cannot tell")
    return _without(state, gone)


@rule("expand")
def _expand(node: fx.Node, flow: Flow) -> State:
    state, old, new = _source(node, flow), shape_of(node.args[0]), shape_of(node)
    if not isinstance(state, Tokens):
        return state
    shift = len(new) - len(old)
    dims = tuple(dim + shift for dim in state.dims)
    spread = [dim for dim in range(len(new)) if new[dim] != (old[dim - shift] if dim >= shift else 1)]
    if set(spread).intersection(dims):
        raise Mixed(node, "repeats a part of the tokens")
    return dataclasses.replace(state, dims=dims)


@rule("slice", "select", "unbind", "split", "split_with_sizes", "slice_scatter", "select_scatter", "constant_pad_nd",
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
    rank = len(shape_of(_tensors(node)[0]))
    if name == "constant_pad_nd":
        padded = [rank - 1 - n // 2 for n, size in enumerate(node.args[1]) if size]
    else:
        padded = [argument(node, "dim", 0) % len(shape_of(node) if "backward" in name else shape_of(_tensors(node)[0]))]
    if name == "select_backward":
        moved = tuple(dim + (dim >= padded[0]) for dim in state.dims)
        return dataclasses.replace(state, dims=moved)
    if name == "select_scatter":
        raise Mixed(node, "has no rule for how tokens pass through it")
    if set(padded).intersection(state.dims):
        raise Mixed(node, "takes, joins or pads a part of the tokens")
    if name in ("select", "unbind"):
        state = _without(state, padded)
    return (state,) * outputs if outputs else state


def _settle_alike(node: fx.Node, flow: Flow) -> list[State]:
    reads = _tensors(node)
    state = next((known for read in reads if isinstance(known := flow.known(read), Tokens)), None)
    if state is None:
        return _settle(node, flow)
    for read in reads:
        if flow.known(read) is None:
            flow.require(read, dataclasses.replace(state, points=""), node)
        elif flow.known(read) != state:
            raise Mixed(node, "joins values with and without tokens")
    return [state]
