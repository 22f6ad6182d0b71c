"""Which values to save when a byte held costs `price` seconds: a minimum cut, exact for sums of bytes and seconds.

    source --seconds(v)--> v_in --hold(v) + price * bytes(v)--> v_out --inf--> (w_in of a reader w | sink)

v_in on the sink's side: v is computed again.  v_in on the source's side and v_out on the sink's: v is saved.
Lowering or raising the price walks along the trade of recompute time against saved bytes; the breakpoints of that walk
are found as those of any parametric minimum (Eisner and Severance, "Mathematical techniques for efficient record
segmentation in large shared databases", 1976).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from memgraph.facts.actions import Recompute
from memgraph.facts.joint import JointFacts

# scipy's maximum_flow works in int32.
FOREVER = 2**31 - 1
RESOLUTION = 2**29


@dataclasses.dataclass(frozen=True)
class Cut:
    """saved: values to keep.  bytes: their sum.  seconds: of computing the rest again, and of writing
    what only saving makes a buffer of."""

    saved: frozenset[int]
    bytes: int
    seconds: float


class SavedSetCut:
    """The cut of one joint graph for any price. Outputs of the forward are held anyway: saving them costs nothing."""

    def __init__(self, facts: JointFacts) -> None:
        self.facts = facts
        values = facts.values
        backward = set(facts.backward)
        self.needed = self._needed(backward)
        free = {values[i].storage for i in facts.forward_outputs}
        tails, heads, self._edges = [], [], []
        number = {v: 2 * n for n, v in enumerate(self.needed)}
        self._source, self._sink = 2 * len(number), 2 * len(number) + 1
        for v, vertex in number.items():
            value = values[v]
            holds = value.savable and value.kind != "view"
            again = value.fixed is None and (value.pin is None or value.pinned(Recompute))
            size = 0 if value.storage in free else value.bytes
            if not holds:
                size = -1  # cannot be held: a view, a tuple, a symbol
            elif value.pinned(Recompute) and again:
                size = -1
            tails += [self._source, vertex]
            heads += [vertex, vertex + 1]
            self._edges.append((v, value.seconds if again else -1.0, size))
        self._fixed_from = len(tails)
        for v, vertex in number.items():
            for read in values[v].inputs:
                if read in number:
                    tails.append(number[read] + 1)
                    heads.append(vertex)
        direct = {i for b in facts.backward for i in values[b].inputs} | set(facts.backward_outputs)
        for v in sorted(direct - backward):
            if v in number:
                tails.append(number[v] + 1)
                heads.append(self._sink)
        self._hold = np.array([values[v].hold for v in self.needed])
        self._region = np.array([values[v].region for v in self.needed], dtype=int)
        self._tails, self._heads, self._number = np.array(tails), np.array(heads), number

    def _needed(self, backward: set[int]) -> list[int]:
        """Computed forward values from which the backward's reads come, in order."""
        values = self.facts.values
        wanted = {i for b in backward for i in values[b].inputs} | set(self.facts.backward_outputs)
        wanted -= backward
        pending = list(wanted)
        while pending:
            for read in values[pending.pop()].inputs:
                if read not in wanted:
                    wanted.add(read)
                    pending.append(read)
        return sorted(i for i in wanted if values[i].kind not in ("primal", "tangent"))

    def at(self, price: float | np.ndarray, boundaries: Collection[int] = ()) -> Cut:
        """The cheapest saved set when holding a byte costs `price` seconds (one figure, or one for each region).

        boundaries: values that are not to be computed again.  Raises Uncuttable where no saved set is legal.
        """
        boundaries = frozenset(boundaries)
        seconds = np.array([-1.0 if edge[0] in boundaries else edge[1] for edge in self._edges])
        sizes = np.array([float(edge[2]) for edge in self._edges])
        if isinstance(price, np.ndarray):
            price = price[self._region]
        # No cut costs more than computing everything again but what has to be held.
        top = max(seconds.clip(0).sum() + (price * sizes.clip(0) + self._hold)[seconds < 0].sum(), 1e-12)
        scale = RESOLUTION / top
        again = np.where(seconds < 0, FOREVER, np.minimum(np.rint(seconds * scale), RESOLUTION)).astype(np.int64)
        # A value that takes no time to compute is still never held for nothing.
        holding = sizes * price + self._hold
        hold = np.where(sizes < 0, FOREVER, np.minimum(np.rint(holding * scale) + 1, RESOLUTION))
        capacity = np.full(len(self._tails), FOREVER, dtype=np.int64)
        capacity[0 : self._fixed_from : 2] = again
        capacity[1 : self._fixed_from : 2] = hold
        count = self._sink + 1
        graph = csr_array((capacity.astype(np.int32), (self._tails, self._heads)), shape=(count, count))
        result = maximum_flow(graph, self._source, self._sink)
        if result.flow_value >= FOREVER - 1:
            raise Uncuttable("some value may neither be held nor be computed again")
        residual = csr_array(graph - result.flow)
        residual.data = (residual.data > 0).astype(np.int8)
        residual.eliminate_zeros()
        side = np.zeros(count, dtype=bool)
        side[breadth_first_order(residual, self._source, return_predecessors=False)] = True
        saved = frozenset(v for v, vertex in self._number.items() if side[vertex] and not side[vertex + 1])
        again_seconds = sum(edge[1] for edge in self._edges if not side[self._number[edge[0]]])
        again_seconds += sum(self.facts.values[v].hold for v in saved)
        total = sum(edge[2] for edge in self._edges if edge[0] in saved)
        return Cut(saved, total, again_seconds)

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


class Uncuttable(Exception):
    """No set of saved values is legal: what may not be computed again may not be held either."""
