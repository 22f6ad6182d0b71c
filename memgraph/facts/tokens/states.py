"""What is known of a value's tokens, and how the rules that find it are written and looked up.

A rule gets a node and a `Flow`; it asks for the states of the node's inputs, requires states of those that are not
known yet, and returns the state of the output (a tuple of them where there are several). It raises Mixed where a
token's output needs other tokens in any other way than as a sum.
"""

from __future__ import annotations

import dataclasses
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
    spread: of an input that is the same along some of these dimensions, but not all: their sizes in what reads it.
    """

    dims: tuple[int, ...]
    factor: int = 1
    order: str = "tokens"
    points: str = ""
    spread: tuple[int, ...] = ()

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
POINTWISE = "any pointwise operator"
# Where an operator is told the size of its output, that argument's place.
SIZED = {"view": 1, "_unsafe_view": 1, "reshape": 1, "expand": 1, "full": 0, "empty": 0, "zeros": 0, "ones": 0}
SIZED |= {"slice_backward": 1, "select_backward": 1, "new_zeros": 1, "new_empty": 1, "new_full": 1, "new_ones": 1}
LENGTHS = frozenset(("prims::iota", "arange"))
# Constants, and 0, 1, 2, ...: made anew for each shard.
MAKERS = frozenset(("full", "empty", "zeros", "ones", "scalar_tensor", *LENGTHS))
SAME_SHAPE = frozenset(
    "clone _to_copy where rsqrt copy lift_fresh_copy zeros_like ones_like full_like empty_like "
    "prims::convert_element_type prims::fma prims::device_put".split()
)


def rule(*names: str) -> Callable[[Rule], Rule]:
    def put(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return put


def rule_of(node: fx.Node) -> Rule:
    """The rule of a node's operator.  Raises Mixed where there is none."""
    name = short_name(node.target)
    if name in RULES:
        return RULES[name]
    schema = getattr(node.target, "_schema", None)
    entrywise = schema is not None and not schema.is_mutable and torch.Tag.pointwise in node.target.tags
    if entrywise or name in SAME_SHAPE:
        return RULES[POINTWISE]
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


def counts_from_zero(node: fx.Node) -> bool:
    """Whether an operator of LENGTHS gives 0, 1, 2, ..."""
    return len(node.args) == 1 and node.kwargs.get("start", 0) == 0 and node.kwargs.get("step", 1) == 1


def normal(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The dimensions without those of size 1, as long as one is left."""
    kept = tuple(dim for dim in dims if shape[dim] != 1)
    return kept or tuple(dims[-1:])


def apart(state: Tokens, shape: Sequence[int]) -> bool:
    """Whether other dimensions lie between those of the tokens."""
    return any(shape[dim] != 1 and dim not in state.dims for dim in range(state.dims[0], state.dims[-1]))


def tensors(node: fx.Node) -> list[fx.Node]:
    return [read for read in node.all_input_nodes if is_tensor(read)]


def settle(node: fx.Node, flow: Flow) -> list[State]:
    """The states of all tensors that a node reads, guessed where nothing decides."""
    return [flow.known(read) or flow.guess(read, node) for read in tensors(node)]


def source(node: fx.Node, flow: Flow) -> State:
    """The state of an operator's first input."""
    read = node.args[0]
    return flow.known(read) or flow.guess(read, node)
