"""A linear program that every plan of a graph satisfies: its optimum bounds all of them from below (bound.py).

Each needed value has a variable for "saved", "computed again" and each tier, between 0 and 1. Rows say what every plan
satisfies. There are too many operators for a row of each: bound.py adds the rows that an optimum breaks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from memgraph.facts.actions import Recompute
from memgraph.planner.candidates import Candidates
from memgraph.planner.leaving import Tiers
from memgraph.planner.linear import LinearProgram, columns_of
from memgraph.planner.moments import is_buffer
from memgraph.planner.narrows import Narrow
from memgraph.planner.queues import Tier
from memgraph.planner.stays import Stay, Stays

# About how many variables a program may have. The row of an operator of the backward takes one for each value that may
# have been computed again by then.
MOST_VARIABLES = 30_000


class Relaxation:
    """The linear program of one joint graph with these tiers."""

    def __init__(self, candidates: Candidates, tiers: Tiers | None, unit: float) -> None:
        """unit: bytes that count as 1."""
        facts, values = candidates.facts, candidates.facts.values
        self.facts, self.unit = facts, unit
        self.second = max(sum(values[i].seconds for i in (*facts.forward, *facts.backward)), 1e-12)
        """Seconds that count as 1, like `unit` for bytes: so coefficients of the program are about 1."""
        self.tiers = tuple(tier for tier in (tiers.tiers if tiers else ()) if not tier.only_rules)
        self._min_bytes = max(1, tiers.min_bytes if tiers else 1)
        self.moments, self.needs = candidates.moments, candidates.needs
        self.clocks = (self._clock(facts.forward), self._clock(facts.backward))
        self.program = LinearProgram()
        self.peak = self.program.variable(most=np.inf)
        """The variable of the peak, in units."""
        # What hides costs its drag, and what is waited for costs all of its time and no drag. So copies of c seconds,
        # of which s are waited for, cost at least drag * c + (1 - drag) * s, with the largest drag in the last term.
        # What a value takes however small it is comes beside that.
        wait = 1.0 - max((tier.drag for tier in self.tiers), default=0.0)
        self.waits = (self.program.variable(cost=wait, most=np.inf), self.program.variable(cost=wait, most=np.inf))
        """The variables of the time that the forward and the backward wait for copies, in `second`."""
        self.saved: dict[int, int] = {}
        """By value, the variable of its being saved."""
        self.again: dict[int, int] = {}
        """By value, the variable of its being computed again."""
        self.away: dict[tuple[int, str], int] = {}
        """By value and tier, the variable of its being away."""
        self.peak_rows: dict[tuple[bool, int], int] = {}
        """By direction (true for the backward) and place, the row that keeps what stands there under the peak."""
        self.narrows: dict[int, tuple[Narrow, int]] = {}
        """By place of the backward: what stands there in whichever way its inputs are made, and a row with that."""
        self._refined: set[int] = set()
        self._computed: dict[int, dict[int, int]] = {}
        self.returned = {values[i].storage for i in facts.forward_outputs}
        for v in self.needs.inputs:
            self._variables_of(v)
        self._need()
        for tier in self.tiers:
            self._links(tier)
        places = list(self._fullest(facts.backward, self.moments.backward))
        each = 2 * max(1, len(places)) * len(self.needs.inputs) // max(1, len(facts.region_names))
        # Regions before its own from which the row of an operator of the backward has recomputed values.
        self._reach = min(len(facts.region_names), MOST_VARIABLES // 3 // max(1, each))
        for place in self._fullest(facts.forward, self.moments.forward):
            self.forward_row(place)
        for place in places:
            self.backward_row(place)
        self._narrow(candidates.narrows)

    # --- what is done with each value -----------------------------------------------------------------------

    def _variables_of(self, v: int) -> None:
        value, program = self.facts.values[v], self.program
        pinned = value.pin is not None and not value.pinned(Recompute)
        if value.savable and not value.pinned(Recompute):
            self.saved[v] = program.variable(cost=value.hold / self.second)
        if value.fixed is None and not (pinned and v in self.saved):
            self.again[v] = program.variable(cost=value.seconds / self.second)
        leaves = value.movable and value.storage not in self.returned and value.bytes >= self._min_bytes
        if v in self.saved and leaves and self.tiers:
            for tier in self.tiers:
                self.away[v, tier.name] = program.variable(cost=tier.taken(value.bytes) / self.second)
            program.row([(self.saved[v], 1.0), *((column, -1.0) for column in self.leaving(v))], 0.0)

    def leaving(self, v: int) -> list[int]:
        return [self.away[v, tier.name] for tier in self.tiers if (v, tier.name) in self.away]

    def _need(self) -> None:
        """Rows: what the backward reads is saved or computed again, and so is all that recomputed values read."""
        ours = set(self.facts.backward)
        read = {i for b in self.facts.backward for i in self.facts.values[b].inputs} | set(self.facts.backward_outputs)
        for v in sorted({v for i in read - ours for v in self.needs.behind(i)}):
            self.program.row(columns_of(v, self.saved, self.again), 1.0)
        for v, column in self.again.items():
            for u in self.needs.inputs[v]:
                self.program.row([*columns_of(u, self.saved, self.again), (column, -1.0)], 0.0)

    # --- links --------------------------------------------------------------------------------------------

    def _links(self, tier: Tier) -> None:
        """Rows: a tier's capacity, and the time that the step waits for copies that take longer than its operators."""
        values, program = self.facts.values, self.program
        away = {v: column for (v, name), column in self.away.items() if name == tier.name}
        if tier.capacity is not None:
            room = [(column, -tier.room(values[v].bytes) / self.unit) for v, column in away.items()]
            program.row(room, -tier.capacity / self.unit)
        out, back = ({v: values[v].bytes / rate / self.second for v in away} for rate in (tier.out, tier.back))
        begins = self.clocks[0]
        for place in self._region_ends(self.facts.forward):
            late = [(column, -out[v]) for v, column in away.items() if self.moments.birth(values[v].storage) > place]
            if late:  # they are copied after this operator has ended, and before the forward has
                program.row([(self.waits[0], 1.0), *late], begins[place + 1] - begins[-1])
        begins = self.clocks[1]
        for place in self._region_ends(self.facts.backward):
            needed = [(column, -back[v]) for v, column in away.items() if self._use(v) <= place]
            if needed:  # they are back when this operator begins; what is computed again until then gives them time
                again = [
                    (c, values[v].seconds / self.second) for v, c in self.again.items() if self.needs.before(v, place)
                ]
                program.row([(self.waits[1], 1.0), *again, *needed], -begins[place])

    def _use(self, v: int) -> int:
        """The first place of the backward that reads a value's storage; behind the last one where none does."""
        return self.moments.first.get(self.facts.values[v].storage, len(self.facts.backward))

    def _clock(self, order: Sequence[int]) -> np.ndarray:
        """When each operator begins, and when the last one ends, in `second`, without recomputation and waiting."""
        return np.cumsum([0.0, *(self.facts.values[i].seconds / self.second for i in order)])

    def _region_ends(self, order: Sequence[int]) -> Iterator[int]:
        """The last place of each stretch of one region."""
        values = self.facts.values
        for place, i in enumerate(order):
            if place + 1 == len(order) or values[order[place + 1]].region != values[i].region:
                yield place

    # --- peaks --------------------------------------------------------------------------------------------

    def _fullest(self, order: Sequence[int], surely: np.ndarray) -> Iterator[int]:
        """Of each region the place of its first operator and the one at which most stands; and the last place of all.

        surely: by place, the bytes that stand there in every plan.
        """
        regions: dict[int, list[int]] = {}
        for place, i in enumerate(order):
            regions.setdefault(self.facts.values[i].region, []).append(place)
        found = {len(order) - 1} if order else set()
        for places in regions.values():
            found |= {places[0], max(places, key=lambda place: surely[place])}
        yield from sorted(found)

    def held(self, v: int) -> float:
        """The bytes that saving a value takes beyond what stands anyway, in units."""
        values, storage = self.facts.values, self.facts.values[v].storage
        anyway = storage in self.facts.held_outputs or values[storage].kind in ("primal", "tangent")
        return 0.0 if anyway else values[storage].bytes / self.unit

    @functools.cached_property
    def stays(self) -> Stays:
        """Where values stand that may be saved, without what the moments count already."""
        found = []
        facts, moments, end = self.facts, self.moments, len(self.facts.backward) - 1
        for v in self.saved:
            storage, size = facts.values[v].storage, self.held(v)
            ready = self.needs.ready.get(v)
            if not size or ready is None:
                continue
            start = max(moments.birth(storage), moments.counted.get(storage, -1) + 1)
            first, last = moments.first.get(storage), moments.last.get(storage, -1)
            # A value that only recomputed operators read stands until the first of these may run: before the first
            # operator of the backward that needs what they make.
            waits = ready - 1 if first is None else first - 1
            again = len(facts.backward) if first is None else first
            beside = moments.beside.get(storage, frozenset())
            found.append(Stay(v, size, start, waits, again, end if facts.retained else last, beside))
        return Stays(found)

    def _peak_row(self, place: int, backward: bool, terms: Iterable[tuple[int, float]], surely: int) -> None:
        row = self.program.row([(self.peak, 1.0), *terms], surely / self.unit)
        self.peak_rows[backward, place] = row

    def forward_row(self, place: int) -> None:
        """Add the row of an operator of the forward: saved values that nothing else keeps, less what has left."""
        program = self.program
        standing = self.stays.born_by(place)
        terms = [(self.saved[stay.value], -stay.bytes) for stay in standing]
        for tier in self.tiers:
            gone = program.variable(most=np.inf)
            terms.append((gone, 1.0))
            away = [(self.away.get((stay.value, tier.name)), stay.bytes) for stay in standing]
            program.row([(gone, -1.0), *((column, size) for column, size in away if column is not None)], 0.0)
            rate = tier.out * self.second / self.unit
            program.row([(self.waits[0], rate), (gone, -1.0)], -self.clocks[0][place] * rate)
        self._peak_row(place, False, terms, int(self.moments.forward[place]))

    def backward_row(self, place: int) -> None:
        """Add the row of an operator of the backward: saved and recomputed values that are still to be read."""
        terms = self._standing(place, frozenset())
        self._peak_row(place, True, terms, int(self.moments.backward[place]))

    def _narrow(self, narrows: Mapping[int, Narrow]) -> None:
        """Add rows of operators whose inputs take memory in whichever way they are made."""
        for place, narrow in narrows.items():
            if narrow.bytes:
                terms = self._standing(place, narrow.storages)
                surely = int(self.moments.backward[place]) + narrow.bytes
                self.narrows[place] = narrow, self.program.row([(self.peak, 1.0), *terms], surely / self.unit)

    def _standing(self, place: int, without: frozenset[int]) -> list[tuple[int, float]]:
        """Terms of values that are still to be read at a place of the backward.  without: storages left out."""
        values = self.facts.values
        terms: list[tuple[int, float]] = []
        for stay in self.stays.at(place):
            if values[stay.value].storage in without:
                continue
            terms.append((self.saved[stay.value], -stay.bytes))
            if self.tiers and place <= stay.waits:
                terms += [(column, stay.bytes) for column in self.leaving(stay.value)]
        for v, column in self.computed_by(place).items():
            later = self.moments.first.get(v, -1) > place
            if later and is_buffer(self.facts, v) and (size := self.held(v)) and values[v].storage not in without:
                terms.append((column, -size))
        return terms

    @functools.cached_property
    def _by_region(self) -> list[list[int]]:
        """By region, the needed values of it."""
        found: list[list[int]] = [[] for _ in self.facts.region_names]
        for v in self.needs.inputs:
            found[self.facts.values[v].region].append(v)
        return found

    def computed_by(self, place: int) -> Mapping[int, int]:
        """By value of the operator's region and the few before it: a variable, 1 if it was computed again by then.

        place: of the operator in the backward.
        """
        if place not in self._computed:
            self._computed[place] = self._new_computed(place)
        return self._computed[place]

    def _new_computed(self, place: int) -> dict[int, int]:
        program = self.program
        region = self.facts.values[self.facts.backward[place]].region
        near = self._by_region[max(0, region - self._reach) : region + 1]
        columns = {v: program.variable() for v in itertools.chain.from_iterable(near) if v in self.again}
        read_at = self.needs.read_at
        for v in columns:
            if read_at.get(v, place + 1) <= place:
                program.row([(columns[v], 1.0), *columns_of(v, self.saved)], 1.0)
        inside = set(itertools.chain.from_iterable(near))
        for v, column in columns.items():
            for u in self.needs.inputs[v]:
                if u in inside:
                    program.row([*columns_of(u, columns, self.saved), (column, -1.0)], 0.0)
        return columns

    def refine(self, place: int) -> bool:
        """Add to the row of an operator of the backward the saved values that wait for recomputed operators.

        Returns false where that was done before, or would take too many variables.
        """
        if place in self._refined or len(self.program.cost) + len(self.needs.inputs) > MOST_VARIABLES:
            return False
        if (True, place) not in self.peak_rows:
            self.backward_row(place)
        self._refined.add(place)
        self.extend(place, self._waiting(place))
        return True

    def extend(self, place: int, terms: Sequence[tuple[int, tuple[int, float]]]) -> None:
        """Add terms, each of a storage, to the rows of an operator of the backward."""
        self.program.extend(self.peak_rows[True, place], [term for _, term in terms])
        if place in self.narrows:
            narrow, row = self.narrows[place]
            self.program.extend(row, [term for storage, term in terms if storage not in narrow.storages])

    def _waiting(self, place: int) -> list[tuple[int, tuple[int, float]]]:
        """Storages and terms of saved values that only recomputed operators read, while none of these has run.

        A value has been computed again by a place only if the backward has read it by then, or a recomputed operator
        has.
        """
        program = self.program
        run: dict[int, int] = {}
        for v in sorted(self.needs.inputs, reverse=True):
            if v not in self.again or not self.needs.before(v, place):
                continue
            if self.needs.read_at.get(v, place + 1) <= place:
                run[v] = self.again[v]
            else:
                run[v] = program.variable()
                program.row([(self.again[v], 1.0), (run[v], -1.0)], 0.0)
                program.row([*((run[w], 1.0) for w in self.needs.readers[v] if w in run), (run[v], -1.0)], 0.0)
        terms = []
        for stay in self.stays:
            v = stay.value
            if v in self.needs.read_at or place <= stay.waits:
                continue
            waits = program.variable()
            gone = [*self.leaving(v), *(run[w] for w in self.needs.readers[v] if w in run)]
            program.row([(waits, 1.0), (self.saved[v], -1.0), *((column, 1.0) for column in gone)], 0.0)
            terms.append((self.facts.values[v].storage, (waits, -stay.bytes)))
        return terms
