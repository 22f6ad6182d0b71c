"""How a value of a joint graph relates to the tokens: what each shard of them has of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TypeAlias

from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import short_name


class MixesTokens(Exception):
    """An operator that a shard of the tokens cannot run by itself."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        """node: the operator.  reason: a phrase that goes on after the operator's name."""
        self.node, self.reason = node, reason
        super().__init__(f"{node.name}: {short_name(node.target)} {reason}")


class RowOrder(enum.Enum):
    """The order in which rows lie."""

    TOKENS = "tokens"
    """As the tokens do: the rows of the shards, one shard after the other, are the whole value."""
    ROUTED = "routed"
    """A sort within each shard has put its rows into an order by expert."""


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A value of which each shard has its rows."""

    dims: tuple[int, ...]
    """The dimensions that the tokens run along, row-major, without those of size 1."""
    factor: int = 1
    """Rows a token."""
    order: RowOrder = RowOrder.TOKENS
    """The order of the rows."""
    points: RowOrder | None = None
    """Of integers that are positions of rows: the order of the rows that they point to.  None for all other values."""
    spread: tuple[int, ...] = ()
    """Of an input that is the same along some of `dims`, but not along all: the sizes of `dims` in its reader."""
    multiple: int = 1
    """The rows are filled up to a multiple of this, in each shard as in the whole."""

    @property
    def crosses(self) -> bool:
        """Whether the value may cross the border of a region: its shards, one after the other, are the whole."""
        return self.order is RowOrder.TOKENS and self.points is None


@dataclasses.dataclass(frozen=True)
class Replicated:
    """A value that is the same for all shards."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """A value that is the sum of the shards' values."""


@dataclasses.dataclass(frozen=True)
class Routing:
    """How many rows of one shard go to each expert: only operators of the same shard may read it."""


REPLICATED, PARTIAL, ROUTING = Replicated(), Partial(), Routing()
# An operator with several outputs has a tuple of states.
State: TypeAlias = "Sharded | Replicated | Partial | Routing | tuple[State, ...]"


def without_ones(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """The dimensions without those of size 1; the last one if all are of size 1."""
    kept = tuple(dim for dim in dims if shape[dim] != 1)
    return kept or tuple(dims[-1:])


def apart(state: Sharded, shape: Sequence[int]) -> bool:
    """Whether other dimensions lie between those of the tokens."""
    between = set(range(state.dims[0], state.dims[-1])).difference(state.dims)
    return any(not compat.same_size(shape[dim], 1) for dim in between)


def without_dims(state: Sharded, dims: Sequence[int]) -> Sharded:
    """The state of a value that lacks some dimensions, none of them a dimension of tokens."""
    places = tuple(dim - sum(gone < dim for gone in dims) for dim in state.dims)
    return dataclasses.replace(state, dims=places)
