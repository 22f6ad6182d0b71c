"""Rows of the linear program (relaxation.py) for values that fused operators compute again.

    scores = bmm(q, k)           computed once
    weights = softmax(scores)    read by a product, and later by the gradient of softmax
    kept = mask * weights        mask = random > p, drawn again
    out = bmm(kept, v)

Such a value takes no memory for sure, as each kernel that reads it may make it anew. But then all stands that the
kernels make it of: between the product and the gradient either the weights do or the scores. And a mask that is drawn
again for several readers is written for them (schedule.py), or it is drawn once more in another region: both take time.

Oracle: tests/properties/test_bounds.py, with masks among the values.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping

from memgraph.planner.linear import columns_of
from memgraph.planner.moments import is_buffer
from memgraph.planner.relaxation import Relaxation

# A value of less than this share of Inductor's own peak is small: whether it stands is not asked.
LARGE = 0.01


class Remade:
    """Adds these rows to one program."""

    def __init__(self, relaxation: Relaxation, *, fused: bool) -> None:
        """fused: whether kernels are fused, as Inductor does."""
        self.relaxation, self.fused = relaxation, fused
        self.facts, self.needs = relaxation.facts, relaxation.needs
        self._write_masks()

    def is_large(self, v: int) -> bool:
        """Whether it is asked if a value stands."""
        return self.relaxation.held(v) >= LARGE

    # --- time -----------------------------------------------------------------------------------------------

    def _write_masks(self) -> None:
        """Rows: a mask that is drawn again for several readers is written, or drawn once more for one of them."""
        values, ours = self.facts.values, self.facts.in_backward
        program, again = self.relaxation.program, self.relaxation.again
        read = Counter(i for b in self.facts.backward for i in values[b].inputs if i not in ours)
        for v, column in again.items():
            cost = min(values[v].hold, self._once_more(v)) if values[v].masks else 0.0
            made_of = self.needs.inputs[v]
            if not cost or not made_of:
                continue
            readers = [again[w] for w in self.needs.readers[v] if w in again and v in values[w].inputs]
            written = program.variable(cost=cost / self.relaxation.second)
            drawn = [(written, 1.0), (column, -1.0), *columns_of(made_of[0], self.relaxation.saved)]
            if read[v] > 1:
                program.row(drawn, 0.0)
            elif read[v]:
                for reader in readers:
                    program.row([*drawn, (reader, -1.0)], -1.0)
            else:
                for one, other in itertools.pairwise(readers):
                    program.row([*drawn, (one, -1.0), (other, -1.0)], -2.0)

    def _once_more(self, v: int) -> float:
        """The seconds, at least, of computing a value once more for another region."""
        values, everywhere = self.facts.values, self._everywhere
        return values[v].seconds + sum(values[u].seconds for u in self.needs.inputs[v] if u in everywhere)

    @functools.cached_property
    def _everywhere(self) -> frozenset[int]:
        """Values that fused operators make of what every plan has: each region that reads them makes them anew."""
        values, found = self.facts.values, set(self.facts.primals)
        for i in self.facts.forward:
            if values[i].fixed or (values[i].inlinable and found.issuperset(values[i].inputs)):
                found.add(i)
        return frozenset(found)

    # --- memory ---------------------------------------------------------------------------------------------

    def refine(self, place: int) -> None:
        """Add to the rows of an operator of the backward what stands there for values that are read again later."""
        self.relaxation.extend(place, self._standing(place, self.relaxation.computed_by(place)))

    def _standing(self, place: int, computed: Mapping[int, int]) -> list[tuple[int, tuple[int, float]]]:
        """Storages and terms.  computed: by value, the variable of its having been computed again by this place."""
        relaxation, values, program = self.relaxation, self.facts.values, self.relaxation.program
        again = relaxation.again
        counted = {stay.value for stay in relaxation.stays.at(place)}
        terms = []
        later: dict[int, int] = {}
        """By value, a variable: 1 where it can be read later."""
        for v, column in computed.items():
            if not self._asked(v, place):
                continue
            read = not is_buffer(self.facts, v) and relaxation.moments.last.get(v, -1) > place
            # What no operator has needed yet is computed again later.
            after = [again[w] for w in self.needs.readers[v] if w in again and not self.needs.before(w, place)]
            if read or after:
                later[v] = program.variable()
            if read:
                saved = [(saved, -1.0) for saved, _ in columns_of(v, relaxation.saved)]
                program.row([(later[v], 1.0), (column, -1.0), *saved], 0.0)
            for reader in after:
                program.row([(later[v], 1.0), (column, -1.0), (reader, -1.0)], -1.0)
        pending = list(later)
        while pending:
            v = pending.pop()
            itself = [(program.variable(), 1.0)]
            (stands, _), *_ = itself
            if is_buffer(self.facts, v) and relaxation.moments.first.get(v, -1) > place:
                program.row([(computed[v], 1.0), (stands, -1.0)], 0.0)  # the program has its bytes
            else:
                terms.append((values[v].storage, (stands, -relaxation.held(v))))
            if v in counted:
                itself.append((relaxation.saved[v], 1.0))
            itself.append((later[v], -1.0))
            if not values[v].inlinable:
                program.row(itself, 0.0)
                continue
            program.row([*itself, *columns_of(v, relaxation.again)], 0.0)  # what is saved is not made anew
            if v in self._inlined:
                numbers = columns_of(self._inlined[v], relaxation.saved)
                program.row([(stands, -1.0), *((column, -1.0) for column, _ in numbers)], -1.0)
            for u in self.needs.inputs[v]:
                if u in computed and self._asked(u, place):
                    if u not in later:
                        later[u] = program.variable()
                        pending.append(u)
                    program.row([*itself, (later[u], 1.0)], 0.0)
        return terms

    def _asked(self, v: int, place: int) -> bool:
        """Whether it is asked if a value stands at a place: where it stands in every plan, it is counted already."""
        storage, moments = self.facts.values[v].storage, self.relaxation.moments
        return self.is_large(v) and place not in moments.beside.get(storage, ())

    @functools.cached_property
    def _inlined(self) -> Mapping[int, int]:
        """By mask that only fused operators read: its random numbers. Where these are saved, nobody writes it."""
        values = self.facts.values
        alone = {u for value in values if value.kind not in ("pointwise", "reduction") for u in value.inputs}
        alone.update(self.facts.forward_outputs, self.facts.backward_outputs)
        alone.update(i for i, value in enumerate(values) if value.heavy or value.expanded)
        masks = (v for v in self.relaxation.again if values[v].masks and v not in alone) if self.fused else ()
        return {v: values[v].inputs[0] for v in masks if len(values[v].inputs) == 1}


__all__ = ["Remade"]
