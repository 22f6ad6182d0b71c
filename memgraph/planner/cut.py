"""Which values to save when a byte held costs `price` seconds: a minimum cut, exact for sums of bytes and seconds.

    source --seconds(v)--> v_in --hold(v) + price * bytes(v)--> v_out --inf--> (w_in of a reader w | sink)

Problem: each value that the backward needs is either held, which costs bytes, or computed again, which costs its
seconds and needs its inputs in turn. v_in on the sink's side: v is computed again. v_in on the source's side and v_out
on the sink's: v is saved. What may not be computed again, or may not be held, has an edge that no cut can afford.

Which library: `scipy.sparse.csgraph.maximum_flow`. On the graph of a Llama of 8 layers (779 values, 2,750 edges) it
takes 1.1 ms; `networkx.minimum_cut` takes 70 to 190 ms, and a plan makes some dozens of cuts. Of all minimum cuts this
one is nearest to the source.

Algorithm: lowering or raising the price walks along the trade of recompute time against saved bytes. The breakpoints of
that walk are found as those of any parametric minimum (Eisner and Severance, "Mathematical techniques for efficient
record segmentation in large shared databases", 1976).

Oracle: tests/planner/test_cut.py compares the cut with every subset of small random graphs, and its cost with that of
networkx on larger ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from memgraph.facts.actions import Recompute
from memgraph.facts.joint import JointFacts
from memgraph.facts.values import Value

# scipy's maximum_flow works in int32. FOREVER is the capacity of an edge that no cut may go through; a cut that can be
# afforded costs RESOLUTION at the most, but for rounding.
FOREVER = 2**31 - 1
RESOLUTION = 2**29


class Uncuttable(Exception):
    """No set of saved values is legal: a value that may not be computed again may not be held either."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """The saved set of one price."""

    saved: frozenset[int]
    """Values to keep."""
    bytes: int
    """Their sum."""
    seconds: float
    """Time to compute the others again, and to write those saved values that would get no buffer otherwise."""


def needed_values(facts: JointFacts) -> list[int]:
    """Computed forward values from which the backward's reads come, in order."""
    values = facts.values
    wanted = _read_by_backward(facts)
    pending = list(wanted)
    while pending:
        for read in values[pending.pop()].inputs:
            if read not in wanted:
                wanted.add(read)
                pending.append(read)
    return sorted(i for i in wanted if values[i].kind not in ("primal", "tangent"))


def _read_by_backward(facts: JointFacts) -> set[int]:
    """Values that an operator of the backward reads, or that the backward returns, and that it does not compute."""
    read = {i for b in facts.backward for i in facts.values[b].inputs} | set(facts.backward_outputs)
    return read - set(facts.backward)


@dataclasses.dataclass(frozen=True)
class Costs:
    """The price of a value on either side of the cut."""

    again: float | None
    """Seconds to compute it again; None if it must not be."""
    held: int | None
    """Bytes that it takes to hold; None if it cannot be held."""


def _costs(value: Value, free: bool) -> Costs:
    """free: the forward returns its bytes, so they are held anyway."""
    repeatable = value.fixed is None and (value.pin is None or value.pinned(Recompute))
    holdable = value.savable and value.kind != "view" and not (value.pinned(Recompute) and repeatable)
    return Costs(value.seconds if repeatable else None, (0 if free else value.bytes) if holdable else None)


class SavedSetCut:
    """The cut of one joint graph for any price. Outputs that the user holds are there anyway: saving them is free."""

    def __init__(self, facts: JointFacts) -> None:
        self.facts, values = facts, facts.values
        self.needed = needed_values(facts)
        free = facts.held_outputs
        self._costs = [_costs(values[v], values[v].storage in free) for v in self.needed]
        self._again = np.array([cost.again or 0.0 for cost in self._costs])
        self._repeatable = np.array([cost.again is not None for cost in self._costs], dtype=bool)
        self._bytes = np.array([float(cost.held or 0) for cost in self._costs])
        self._holdable = np.array([cost.held is not None for cost in self._costs], dtype=bool)
        self._hold = np.array([values[v].hold for v in self.needed])
        self._region = np.array([values[v].region for v in self.needed], dtype=int)
        # The value at place n of `needed` has the vertices 2n (in) and 2n + 1 (out); source and sink come last.
        self._place = {v: n for n, v in enumerate(self.needed)}
        self._source, self._sink = 2 * len(self.needed), 2 * len(self.needed) + 1
        self._tails, self._heads = self._edges()

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """From the source to each value, from each value's in to its out, then those that no cut can afford."""
        count, values, place = len(self.needed), self.facts.values, self._place
        tails = [self._source] * count + [2 * n for n in range(count)]
        heads = [2 * n for n in range(count)] + [2 * n + 1 for n in range(count)]
        for n, v in enumerate(self.needed):
            reads = [place[read] for read in values[v].inputs if read in place]
            tails += [2 * m + 1 for m in reads]
            heads += [2 * n] * len(reads)
        ends = [place[v] for v in sorted(_read_by_backward(self.facts)) if v in place]
        tails += [2 * n + 1 for n in ends]
        heads += [self._sink] * len(ends)
        return np.array(tails, dtype=int), np.array(heads, dtype=int)

    def at(self, price: float | np.ndarray, boundaries: Collection[int] = ()) -> Cut:
        """The cheapest saved set when holding a byte costs `price` seconds (one figure, or one for each region).

        boundaries: values that are not to be computed again.  Raises Uncuttable if no saved set is legal.
        """
        source_side = self._source_side(self._capacities(price, frozenset(boundaries)))
        inside, outside = source_side[: self._source : 2], source_side[1 : self._source : 2]
        saved = frozenset(v for n, v in enumerate(self.needed) if inside[n] and not outside[n])
        again = sum(cost.again for n, cost in enumerate(self._costs) if cost.again is not None and not inside[n])
        again += sum(self.facts.values[v].hold for v in saved)
        held = sum(cost.held or 0 for v, cost in zip(self.needed, self._costs, strict=True) if v in saved)
        return Cut(saved, held, again)

    def _capacities(self, price: float | np.ndarray, boundaries: frozenset[int]) -> np.ndarray:
        """The capacity of each edge, as an integer."""
        if isinstance(price, np.ndarray):
            price = price[self._region]
        repeatable = self._repeatable & np.array([v not in boundaries for v in self.needed], dtype=bool)
        seconds = np.where(repeatable, self._again, 0.0)
        holding = self._bytes * price + self._hold
        # No cut costs more than the one that holds what must not be computed again, and nothing else.
        top = max(seconds.sum() + holding[~repeatable].sum(), 1e-12)
        scale = RESOLUTION / top
        capacity = np.full(len(self._tails), FOREVER, dtype=np.int64)
        again = np.minimum(np.rint(seconds * scale), RESOLUTION)
        # One more, so that a value that takes no time to compute is not held for nothing.
        hold = np.minimum(np.rint(holding * scale) + 1, RESOLUTION)
        count = len(self.needed)
        capacity[:count] = np.where(repeatable, again, FOREVER)
        capacity[count : 2 * count] = np.where(self._holdable, hold, FOREVER)
        return capacity.astype(np.int32)

    def _source_side(self, capacity: np.ndarray) -> np.ndarray:
        """By vertex: whether the minimum cut leaves it with the source."""
        count = self._sink + 1
        graph = csr_array((capacity, (self._tails, self._heads)), shape=(count, count))
        result = maximum_flow(graph, self._source, self._sink)
        if result.flow_value >= FOREVER - 1:
            raise Uncuttable("some value may neither be held nor be computed again")
        residual = csr_array(graph - result.flow)
        residual.data = (residual.data > 0).astype(np.int8)
        residual.eliminate_zeros()
        side = np.zeros(count, dtype=bool)
        side[breadth_first_order(residual, self._source, return_predecessors=False)] = True
        return side

    def prices(self, low: float, high: float, most: int) -> list[float]:
        """Up to `most` prices between two that give different cuts, least recomputation first."""
        ends = [self.at(low), self.at(high)]
        found = {ends[0].saved: low, ends[1].saved: high}
        pairs = [(ends[0], ends[1])]
        while pairs and len(found) < most:
            pairs.sort(key=lambda pair: pair[0].bytes - pair[1].bytes)
            first, second = pairs.pop()  # the widest gap
            if first.bytes <= second.bytes or second.seconds <= first.seconds:
                continue
            price = (second.seconds - first.seconds) / (first.bytes - second.bytes)
            middle = self.at(price)
            if middle.saved in found:
                continue
            found[middle.saved] = price
            pairs += [(first, middle), (middle, second)]
        return sorted(found.values())
