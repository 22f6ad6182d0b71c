"""How the rows of a mask of attention, one a query, pass through the operators that make it.

    mask[.., i, j] = where(key_position[j] > query_position[i] - 8, 0, -inf)

The walk goes from the mask back to what it is made of. A value that has the queries and the keys among its dimensions
is as large as the mask: a shard makes its own rows of it. A value with the queries alone has rows for each shard, and
one without them is the same for all shards: both are thin and come from outside. An operator passes the rows on if each
entry of its output is made of the entries at the same query.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import fx

from memgraph.facts.operators import argument, aten_names, qualified_name
from memgraph.facts.tokens.kinds import COUNTERS, MAKERS
from memgraph.facts.tokens.nodes import is_tensor, shape_of, tensors
from memgraph.facts.tokens.rules.entrywise import is_pointwise
from memgraph.facts.tokens.states import REPLICATED, MixesTokens, Sharded, State


@dataclasses.dataclass(frozen=True)
class Along:
    """The dimensions of a value that queries and keys run along; below 0 where it has no such dimension."""

    queries: int
    keys: int

    def without(self, leading: int) -> Along:
        """Of a value that lacks so many leading dimensions."""
        return Along(self.queries - leading, self.keys - leading)

    def moved(self, to: Callable[[int], int]) -> Along:
        return Along(*(to(dim) if dim >= 0 else -1 for dim in (self.queries, self.keys)))


Rule: TypeAlias = Callable[[fx.Node, Along], Iterator[tuple[fx.Node, Along]]]
"""Gives, for each tensor that an operator reads, its dimensions of queries and keys.  Raises MixesTokens."""


@dataclasses.dataclass
class Rows:
    """What makes some masks, entry by entry.  Methods raise MixesTokens where an operator mixes queries."""

    members: dict[fx.Node, State] = dataclasses.field(default_factory=dict)
    """The values with an entry for each query and key."""
    inputs: dict[fx.Node, State] = dataclasses.field(default_factory=dict)
    """The thin values that these are made of."""
    keys: dict[fx.Node, int] = dataclasses.field(default_factory=dict)
    """The dimension that the keys run along; below 0 where a value has none."""
    all_keys: bool = False
    """Whether some operator needs all keys: a shard may not be given a part of them."""

    def read(self, node: fx.Node, state: State, reader: fx.Node, keys: int = -1) -> None:
        """Note that a value comes from outside, in a state.  keys: its dimension of keys."""
        if self.inputs.setdefault(node, state) != state:
            raise MixesTokens(reader, f"reads {node.name} both by queries and whole")
        self.has_keys(node, keys)

    def has_keys(self, node: fx.Node, keys: int) -> None:
        """Note along which dimension of a value the keys run."""
        self.all_keys |= self.keys.setdefault(node, keys) != keys

    def follow(self, mask: fx.Node, queries: int | None = None) -> None:
        """Note what makes a mask [.., queries, keys].

        queries: their dimension, where others stand behind that of the keys.
        """
        queries = len(shape_of(mask)) - 2 if queries is None else queries
        pending = [(mask, Along(queries, queries + 1), mask)]
        while pending:
            node, along, reader = pending.pop()
            state = REPLICATED if _lacks(node, along.queries) else Sharded((along.queries,))
            if state == REPLICATED or _lacks(node, along.keys):
                self.read(node, state, reader, -1 if _lacks(node, along.keys) else along.keys)
                continue
            self.has_keys(node, along.keys)
            self.all_keys |= not _keeps_keys(node, along.keys)
            if self.members.setdefault(node, state) != state:
                raise MixesTokens(reader, f"reads {node.name} along other queries than others do")
            pending += [(read, there, node) for read, there in _rule(node)(node, along)]


def _keeps_keys(node: fx.Node, keys: int) -> bool:
    """Whether the keys from one place on, in what an operator reads, are those from the same place on in its output."""
    name = qualified_name(node.target)
    if name in aten_names("index"):  # its places count from the first key
        return False
    if name in aten_names("cat"):
        return argument(node, "dim") % len(shape_of(node)) != keys
    if name in aten_names("slice") and argument(node, "dim") % len(shape_of(node)) == keys:
        return argument(node, "start") in (None, 0) and argument(node, "step") == 1
    if name in aten_names("constant_pad_nd"):
        place = 2 * (len(shape_of(node)) - 1 - keys)
        low, high = (*node.args[1], *[0] * (place + 2))[place : place + 2]
        return low == 0 and isinstance(high, int) and high >= 0
    return True


def keys_after(node: fx.Node, keys: int) -> int:
    """The dimension of keys in what a view, a sum or a conversion makes of its first argument; -1: not known."""
    if keys < 0:
        return -1
    name, old, new = qualified_name(node.target), shape_of(node.args[0]), shape_of(node)
    if name == "prims::convert_element_type":
        return keys
    if name in aten_names("permute"):
        return [dim % len(old) for dim in node.args[1]].index(keys)
    if name in aten_names("sum"):
        over = {dim % len(old) for dim in argument(node, "dim") or range(len(old))}
        if keys in over:
            return -1
        return keys if argument(node, "keepdim") else keys - sum(dim < keys for dim in over)
    if name in aten_names("view _unsafe_view reshape squeeze unsqueeze"):
        places = [dim for dim, size in enumerate(new) if size == old[keys]]
        behind = math.prod(old[keys + 1 :])
        return next((dim for dim in places if math.prod(new[dim + 1 :]) == behind), -1)
    return -1


def _lacks(node: fx.Node, dim: int) -> bool:
    return dim < 0 or shape_of(node)[dim] == 1


def _rule(node: fx.Node) -> Rule:
    if node.op != "call_function":
        raise MixesTokens(node, "is given, and has an entry for each query and key")
    rule = _RULES.get(qualified_name(node.target))
    if rule is not None:
        return rule
    tags = getattr(node.target, "tags", ())
    if is_pointwise(node.target) and torch.Tag.nondeterministic_seeded not in tags:
        return _broadcast
    raise MixesTokens(node, "does not make a mask entry by entry")


def _broadcast(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """Operators whose inputs are broadcast to the shape of the output."""
    for read in tensors(node):
        yield read, along.without(len(shape_of(node)) - len(shape_of(read)))


def _made(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """One number, many times."""
    return iter(())


def _viewed(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """Views that add and leave out dimensions of size 1."""
    read = node.args[0]
    inside, outside = (_longer(shape_of(item)) for item in (read, node))
    if [shape_of(read)[dim] for dim in inside] != [shape_of(node)[dim] for dim in outside]:
        raise MixesTokens(node, "makes one dimension of several")
    yield read, along.moved(dict(zip(outside, inside, strict=True)).__getitem__)


def _longer(shape: Sequence[int]) -> list[int]:
    """The dimensions of a size other than 1."""
    return [dim for dim, size in enumerate(shape) if size != 1]


def _permuted(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    order = [dim % len(node.args[1]) for dim in node.args[1]]
    yield node.args[0], along.moved(order.__getitem__)


def _cut(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """A part along another dimension than the queries."""
    if argument(node, "dim") % len(shape_of(node)) == along.queries:
        raise MixesTokens(node, "takes a part of the queries")
    yield node.args[0], along


def _joined(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """Parts along another dimension than the queries."""
    if argument(node, "dim") % len(shape_of(node)) == along.queries:
        raise MixesTokens(node, "joins queries")
    yield from ((read, along) for read in tensors(node))


def _padded(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """Padding of other dimensions than the queries; it is told from the last dimension on."""
    place = 2 * (len(shape_of(node)) - 1 - along.queries)
    if any(node.args[1][place : place + 2]):
        raise MixesTokens(node, "adds queries")
    yield node.args[0], along


def _picked(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """An entry of a table for each place, by positions that are broadcast: one along each of its dimensions."""
    table, positions = node.args[:2]
    if len(positions) != len(shape_of(table)) or not all(map(is_tensor, positions)):
        raise MixesTokens(node, "picks more than one entry for each place")
    if math.prod(shape_of(table)) >= math.prod(shape_of(node)):
        raise MixesTokens(node, f"picks from {table.name}, which is as large as the mask")
    yield table, Along(-1, -1)
    for read in positions:
        yield read, along.without(len(shape_of(node)) - len(shape_of(read)))


def _looked_up(node: fx.Node, along: Along) -> Iterator[tuple[fx.Node, Along]]:
    """A row of a table for each place, whose entries lie along the last dimension: a bias for each head, say."""
    table, places = node.args[:2]
    if max(along.queries, along.keys) == len(shape_of(node)) - 1:
        raise MixesTokens(node, "has queries or keys within the rows of a table")
    if math.prod(shape_of(table)) >= math.prod(shape_of(node)):
        raise MixesTokens(node, f"picks from {table.name}, which is as large as the mask")
    yield table, Along(-1, -1)
    yield places, along


_RULES: dict[str, Rule] = {
    **dict.fromkeys(aten_names("expand"), _broadcast),
    **dict.fromkeys(aten_names("view _unsafe_view reshape squeeze unsqueeze"), _viewed),
    **dict.fromkeys(aten_names("permute"), _permuted),
    **dict.fromkeys(aten_names("slice"), _cut),
    **dict.fromkeys(aten_names("cat"), _joined),
    **dict.fromkeys(aten_names("constant_pad_nd"), _padded),
    **dict.fromkeys(aten_names("index"), _picked),
    **dict.fromkeys(aten_names("embedding"), _looked_up),
    **dict.fromkeys(MAKERS - COUNTERS, _made),
}
