"""What stands at an operator of the backward in whichever way its inputs are made.

Problem: a value of fused operators may be written, or made anew in the kernel that reads it. So none of these surely
takes memory, and yet one of them does:

    scores (product) ── exp ── weights ── gradient of softmax     of scores, exp and weights one stands there at least

The same holds for the backward's own values that later operators read: a sum, or all that is added up.

Which library: `scipy.sparse.csgraph.maximum_flow`, as in cut.py.

Algorithm: a minimum cut between what is surely written to memory and the operator, through values of fused operators,
each as dear as its bytes; then one between the operators before and those behind, of values that the first has not
seen. What the moments count anyway costs nothing.

Oracle: tests/properties/test_bounds.py; tests/planner/test_narrows.py has the softmax above.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import BUFFERS
from memgraph.planner.moments import Moments

# scipy's maximum_flow works in int32. Bytes are rounded down to units, so that none is counted that does not stand.
FOREVER = 2**30
# For how many operators of the backward, each of another region, narrows are looked for: a walk over the backward each.
# And how many operators of a region are tried for that.
MOST_NARROWS = (8, 4)
# A tuple has no bytes beside those of its elements, which are values of their own.
NOT_COUNTED = ("primal", "tangent", "symbol", "tuple")


@dataclasses.dataclass(frozen=True)
class Narrow:
    """What stands at an operator beside what the moments count."""

    bytes: int
    """At least."""
    storages: frozenset[int]
    """Those that it may be made of: they are not to be counted once more."""


class Narrows:
    """The narrows of one joint graph."""

    def __init__(self, facts: JointFacts, moments: Moments) -> None:
        self.facts, self.moments = facts, moments
        self.place = {i: place for place, i in enumerate(facts.backward)}
        self.part_of: dict[int, int] = {}
        """By part of a gradient, and by view of one, that part: it has memory of its own in every plan."""
        for i in facts.backward:
            value = facts.values[i]
            if value.part or (value.kind == "view" and value.inputs and value.inputs[0] in self.part_of):
                self.part_of[i] = i if value.part else self.part_of[value.inputs[0]]

    def fullest(self, most: int, tried: int) -> list[int]:
        """Of the `most` fullest regions the operator at which most stands; `tried` are looked at in each."""
        wide: dict[int, list[tuple[int, int]]] = {}
        for place, i in enumerate(self.facts.backward):
            if i in self.moments.written and self.facts.values[i].kind != "view":
                wide.setdefault(self.facts.values[i].region, []).append((self._widest(place), place))
        regions = sorted((sorted(places, reverse=True)[:tried] for places in wide.values()), reverse=True)[:most]
        return [max((place for _, place in places), key=self._here) for places in regions]

    def _here(self, place: int) -> int:
        """The bytes that stand at an operator for what it reads, and what the moments count."""
        return int(self.moments.backward[place]) + _Network(self, place).cut([self.facts.backward[place]], self._ready)

    def at(self, place: int) -> Narrow:
        """The narrow of an operator of the backward that is surely written."""
        first = _Network(self, place)
        here = first.cut([self.facts.backward[place]], self._ready)
        later = _Network(self, place, frozenset(first.seen))
        ahead = [i for i in self.facts.backward[place + 1 :] if i in self.moments.written]
        there = later.cut(ahead, self._own)
        return Narrow(here + there, frozenset(first.seen | later.seen))

    def _widest(self, place: int) -> int:
        """Bytes above which what the moments count, and the operator's own inputs, do not come."""
        reads = {root for root in self.roots(self.facts.backward[place]) if not self.counted(root, place)}
        return int(self.moments.backward[place]) + sum(map(self.size, reads))

    def size(self, root: int) -> int:
        """The bytes of a storage."""
        return self.facts.values[root].part or self.facts.values[root].bytes

    def roots(self, i: int) -> set[int]:
        """The storages that an operator reads."""
        values = self.facts.values
        found = {self.part_of.get(read, values[read].storage) for read in values[i].inputs}
        return {root for root in found if values[root].kind not in NOT_COUNTED}

    def counted(self, storage: int, place: int) -> bool:
        """Whether the moments count a storage at a place."""
        first, last = self.moments.own.get(storage, (1, 0))
        beside = self.moments.beside.get(storage, frozenset())
        return storage in self.facts.held_outputs or first <= place <= last or place in beside

    def _ready(self, storage: int, place: int) -> bool | None:
        """Whether a storage that an operator reads is in memory, or may be made in its kernel."""
        return self.facts.values[storage].kind in BUFFERS

    def _own(self, storage: int, place: int) -> bool | None:
        """The same for operators that come later; None for one that need not be there yet."""
        if storage not in self.place:
            return None  # it can be computed again until then
        return self.facts.values[storage].kind in BUFFERS and self.before(storage, place)

    def before(self, storage: int, place: int) -> bool:
        """Whether a storage is there before an operator of the backward runs."""
        return self.place.get(storage, -1) < place


def read_narrows(facts: JointFacts, moments: Moments) -> dict[int, Narrow]:
    """By place of the backward, the narrows of the fullest operators of few regions."""
    found = Narrows(facts, moments)
    return {place: found.at(place) for place in found.fullest(*MOST_NARROWS)}


class _Network:
    """Values between memory and operators, with what they cost."""

    def __init__(self, narrows: Narrows, place: int, free: frozenset[int] = frozenset()) -> None:
        """free: storages that cost nothing."""
        self.narrows, self.at, self.free = narrows, place, free
        self.seen: set[int] = set()
        """The storages that may be in the cut."""
        self.number: dict[int, int] = {}
        self.edges: set[tuple[int, int, int]] = set()

    def cut(self, operators: Iterable[int], ready: Callable[[int, int], bool | None]) -> int:
        """The fewest bytes that separate operators from memory.

        ready: whether a storage is in memory; None where the walk ends without it.
        """
        narrows = self.narrows
        sink, source = 0, 1
        pending = [(root, sink) for i in operators for root in narrows.roots(i)]
        while pending:
            root, reader = pending.pop()
            if narrows.counted(root, self.at):
                continue
            there = ready(root, self.at)
            if there is None:
                continue
            known = root in self.number
            inside = 2 + 2 * self.number.setdefault(root, len(self.number))
            self.edges.add((inside + 1, reader, -1))
            if known:
                continue
            exists = narrows.before(root, self.at)
            if exists:
                self.seen.add(root)
            size = (0 if root in self.free else narrows.size(root)) if exists else -1
            self.edges.add((inside, inside + 1, size))
            if there:
                self.edges.add((source, inside, -1))
            else:
                pending += [(read, inside) for read in narrows.roots(root)]
        return self._flow(source, sink)

    def _flow(self, source: int, sink: int) -> int:
        total = sum(size for _, _, size in self.edges if size > 0)
        if not total:
            return 0
        unit = -(-total // (FOREVER - 1))
        tails, heads, sizes = (np.array(column) for column in zip(*self.edges, strict=True))
        capacity = np.where(sizes < 0, FOREVER, sizes // unit).astype(np.int32)
        count = 2 + 2 * len(self.number)
        graph = csr_array((capacity, (tails, heads)), shape=(count, count))
        found = int(maximum_flow(graph, source, sink).flow_value)
        return min(found, total // unit) * unit


__all__ = ["Narrow", "Narrows"]
