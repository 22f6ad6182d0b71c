"""How far before and after its own place a query may read keys, by what stands in a mask of a joint graph.

    mask[.., i, j] = where((j > i - 32) & (j <= i) & padding[j], 0, -inf)        31 before, 0 after

Where a mask depends on data (padding, packing), a proof holds for all data that there may be. What keeps a key away is
minus infinity alone: of a query that reads no key the smallest number of a type would make the mean of all values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.masks.conditions import Condition, TooIntricate, at_least, possible, some
from memgraph.facts.masks.entries import LARGEST, Entries, aligned, inside
from memgraph.facts.masks.linear import variable
from memgraph.facts.masks.rules import RULES
from memgraph.facts.masks.trace import MOST, Call, NotKnown, Trace, named

# So many keys before or after its own a query may read that reads all of a length that is a symbol.
ALL = LARGEST - 1


@dataclasses.dataclass(frozen=True)
class Reach:
    """The keys that a query may read, counted from the key at its own place."""

    before: int
    """So many keys before its own, at most; all where that is as many as there may be."""
    after: int
    """So many keys after it, at most."""


def reach_of(mask: fx.Node) -> Reach | None:
    """How far queries reach by a mask of a joint graph [.., n, n]. None: to all keys, as far as is known."""
    held = mask.meta["val"]
    queries, keys = held.shape[-2:]
    if not compat.same_size(queries, keys):
        return None
    keys = keys if isinstance(keys, int) else LARGEST
    try:
        read, within = _read(Entries(joint_trace(mask), RULES, with_data=True), held)
        away = variable("query") - variable("key")
        before = _furthest(lambda steps: possible(*within, read, at_least(away, steps)), keys)
        after = _furthest(lambda steps: possible(*within, read, at_least(-away, steps)), keys)
    except (NotKnown, TooIntricate):
        return None
    return Reach(before, after) if min(before, after) < keys - 1 else None


class Reaches:
    """`reach_of` for the masks of one graph, once for those that are made alike: layers make a mask each."""

    def __init__(self) -> None:
        self._found: dict[int, Reach | None] = {}
        """By the number of a mask."""
        self._numbers: dict[str, int] = {}
        """By what an operator does, with the numbers of what it reads."""
        self._of: dict[fx.Node, int] = {}
        """By node, its number."""

    def of(self, mask: fx.Node) -> Reach | None:
        number = self._number(mask)
        if number not in self._found:
            self._found[number] = reach_of(mask)
        return self._found[number]

    def _number(self, wanted: fx.Node) -> int:
        """Equal for nodes that the same operators make of the same inputs."""
        pending = [wanted]
        while pending:
            node = pending[-1]
            missing = [read for read in node.all_input_nodes if read not in self._of]
            if missing:
                pending += missing
                continue
            pending.pop()
            told = fx.map_arg((node.args, dict(node.kwargs)), lambda read: f"%{self._of[read]}")
            does = f"{node.target} {told}" if node.op == "call_function" else node.name
            self._of[node] = self._numbers.setdefault(does, len(self._numbers))
        return self._of[wanted]


def _furthest(may: Callable[[int], bool], keys: int) -> int:
    """The most steps, from 0 to less than the keys, that may be; `may` holds up to some number of steps alone."""
    low, high = 0, keys  # not known that more than `low` may be; known that `high` may not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if may(middle) else (low, middle)
    return low


def _read(entries: Entries, mask: torch.Tensor) -> tuple[Condition, tuple[Condition, ...]]:
    """When the query at `query` may read the key at `key`, and what is known of both."""
    place = [variable(f"dim {dim}") for dim in range(mask.dim() - 2)] + [variable("query"), variable("key")]
    within = inside(place, mask.shape)
    entry = entries.at(mask, aligned(tuple(place), mask.shape), within)
    if isinstance(entry, tuple):
        entry = some(*(condition for condition, number in entry if number != float("-inf")))
    return entry, (*within, *entries.defined)


def joint_trace(node: fx.Node) -> Trace:
    """What makes a tensor of a joint graph.  Raises NotKnown where more operators do than a mask has."""
    calls: dict[int, Call] = {}
    names: dict[int, str] = {}
    kept: list[Any] = []
    pending, found = [node], {node}
    while pending:
        part = pending.pop()
        value = part.meta.get("val")
        if isinstance(value, torch.SymInt):  # operands say what they are, in symbols
            continue
        kept.append(value)
        if id(value) in calls or id(value) in names:
            raise NotKnown(f"{part.name} is the same tensor as another node")
        if part.op == "call_function" and isinstance(part.target, compat.OpOverload):
            args, kwargs = fx.map_arg((part.args, dict(part.kwargs)), lambda read: read.meta.get("val"))
            calls[id(value)] = Call(part.target, named(part.target, args, kwargs), value)
            new = set(part.all_input_nodes) - found
            found |= new
            pending += new
        else:
            names[id(value)] = part.name
        if len(found) > MOST:
            raise NotKnown(f"more than {MOST} operators make it")
    return Trace(node.meta["val"], calls, names, kept)
