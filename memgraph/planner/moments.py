"""What stands at each operator in every plan of a graph, whatever it saves, computes again or copies away.

    forward     values that the forward's outputs need, from their birth to their last reader
    backward    the caller's outputs, gradients; forward values between the first and the last operator that reads them

Everything that some plan might avoid is left out: pointwise values that may be fused into their readers, outputs that
may take the place of an input, operators that only saved values need. So each figure is at most what a sweep counts.

Oracle: tests/properties/test_bounds.py: candidates of random graphs take at least so much at each operator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import BUFFERS, Program, surely_written
from memgraph.planner.copies import Copies
from memgraph.planner.schedule import forward_program, make_schedule


@dataclasses.dataclass(frozen=True)
class Moments:
    """The operators of both directions, and what they surely find allocated."""

    forward: np.ndarray
    """By place in the forward: bytes above the baseline, int64."""
    backward: np.ndarray
    """By place in the backward: bytes above the baseline, int64."""
    born: Mapping[int, int]
    """By storage of the forward: the place from which on it stands if it is saved."""
    counted: Mapping[int, int]
    """By storage of the forward: the last place at which `forward` has its bytes."""
    first: Mapping[int, int]
    """By storage of the forward: the first place of the backward that reads it."""
    last: Mapping[int, int]
    """By storage of the forward: the last place of the backward that reads it."""
    beside: Mapping[int, frozenset[int]]
    """By storage of the forward: the places at which `backward` has its bytes."""
    own: Mapping[int, tuple[int, int]]
    """By storage of the backward: the first and the last place at which `backward` has its bytes."""
    written: frozenset[int]
    """Operators of the backward that are written to memory in every plan."""

    def birth(self, storage: int) -> int:
        """The place of the forward from which on a storage stands; 0 for an input."""
        return self.born.get(storage, 0)


def read_moments(facts: JointFacts, *, fused: bool) -> Moments:
    """fused: as Inductor allocates, else as the FX interpreter does."""
    forward, born, counted = _forward(facts, fused)
    base = make_schedule(facts, facts.stock_saved, Copies.NONE).backward
    reads = _reads(facts, base, fused)
    first = {storage: places[0] for storage, places in reads.items()}
    last = {storage: places[-1] for storage, places in reads.items()}
    end = len(facts.backward) - 1
    for i in facts.backward_outputs:
        if facts.values[i].storage in last:
            last[facts.values[i].storage] = end
    backward, own, written = _backward(facts, base, fused)
    beside = _beside(facts, fused, reads, first, last)
    for storage, places in beside.items():
        for place in places:
            backward[place] += facts.values[storage].bytes
    return Moments(forward, backward, born, counted, first, last, beside, own, written)


def is_buffer(facts: JointFacts, storage: int) -> bool:
    """Whether a forward storage is written to memory whenever it is computed, and is recomputed once at the most."""
    kind = facts.values[storage].kind
    return kind in BUFFERS and kind != "primal"


def _births(facts: JointFacts, order: Sequence[int]) -> dict[int, int]:
    """By value: the place of the operator that allocates it; outputs of a tuple are allocated with the tuple."""
    place = {i: p for p, i in enumerate(order)}
    values = facts.values
    return {i: place.get(values[i].inputs[0], p) if _is_element(facts, i) else p for i, p in place.items()}


def _is_element(facts: JointFacts, i: int) -> bool:
    value = facts.values[i]
    return len(value.inputs) == 1 and value.storage == i and facts.values[value.inputs[0]].kind == "tuple"


def _forward(facts: JointFacts, fused: bool) -> tuple[np.ndarray, dict[int, int], dict[int, int]]:
    """What surely stands; and by storage, from where it stands if it is saved, and up to where it is counted."""
    values, program = facts.values, forward_program(facts, ())
    births = _births(facts, facts.forward)
    sure = surely_written(values, program, fused)
    touching = _touching(facts, program.values[program.inputs :], facts.forward_outputs, sure)
    place = {i: p for p, i in enumerate(facts.forward)}
    run = program.values[program.inputs :]
    last = _last_reads(facts, ((place[i], i) for i in run if i in touching))
    level, counted = _standing(facts, sure, births, last, facts.forward_outputs, fused)
    for i in run:
        level[place[i]] += values[i].scratch
    born = {i: _stands_from(facts, i, births, fused) for i in births if values[i].storage == i}
    return level, born, counted


def _stands_from(facts: JointFacts, i: int, births: Mapping[int, int], fused: bool) -> int:
    """The place from which on a value surely takes bytes of its own: its kernel may write over an input."""
    return births[i] + (fused and facts.values[i].kind in ("pointwise", "reduction"))


def _last_reads(facts: JointFacts, steps: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By storage, the last of these (place, operator) that reads it."""
    return {facts.values[read].storage: place for place, i in steps for read in facts.values[i].inputs}


def _standing(
    facts: JointFacts,
    sure: set[int],
    births: Mapping[int, int],
    last: Mapping[int, int],
    outputs: Iterable[int],
    fused: bool,
) -> tuple[np.ndarray, dict[int, int]]:
    """The bytes of one direction's own values by place, and up to which place each storage is counted.

    sure: values that are written to memory.  births: of all values of the direction.  last: the readers of storages.
    """
    values, end = facts.values, len(births) - 1
    returned = {values[i].storage for i in outputs}
    level = np.zeros(len(births) + 1, dtype=np.int64)
    counted: dict[int, int] = {}
    for i in sure:
        if values[i].storage != i or values[i].kind == "tuple":
            continue
        start = _stands_from(facts, i, births, fused)
        stop = end if i in returned else max(last.get(i, births[i]), births[i])
        if start <= stop:
            counted[i] = stop
            level[start] += values[i].bytes
            level[stop + 1] -= values[i].bytes
    return np.cumsum(level)[:-1], counted


def _touching(facts: JointFacts, steps: Iterable[int], outputs: Iterable[int], sure: set[int]) -> set[int]:
    """Operators whose inputs a kernel surely reads: their own, or that of a reader into which they are inlined."""
    found = sure | set(outputs)
    for i in reversed(list(steps)):
        if i in found:
            found.update(facts.values[i].inputs)
    return found


def _reads(facts: JointFacts, base: Program, fused: bool) -> dict[int, list[int]]:
    """By storage of the forward: the places of the backward that read it, in order."""
    values = facts.values
    ours = set(facts.backward)
    sure = surely_written(values, base, fused) & ours
    touching = _touching(facts, facts.backward, facts.backward_outputs, sure) & ours
    found: dict[int, list[int]] = {}
    for place, i in enumerate(facts.backward):
        if i not in touching:
            continue
        for storage in {values[read].storage for read in values[i].inputs}:
            if storage not in ours and values[storage].kind not in ("primal", "tangent"):
                found.setdefault(storage, []).append(place)
    end = len(facts.backward) - 1
    for i in facts.backward_outputs:
        storage = values[i].storage
        if storage not in ours and values[storage].kind not in ("primal", "tangent") and end >= 0:
            found.setdefault(storage, [end])
    return found


def _backward(
    facts: JointFacts, base: Program, fused: bool
) -> tuple[np.ndarray, dict[int, tuple[int, int]], frozenset[int]]:
    """What surely stands at each operator of the backward, forward values apart; where; what is surely written."""
    values, ours = facts.values, set(facts.backward)
    sure = surely_written(values, base, fused) & ours
    touching = _touching(facts, facts.backward, facts.backward_outputs, sure)
    last = _last_reads(facts, ((place, i) for place, i in enumerate(facts.backward) if i in touching))
    births = _births(facts, facts.backward)
    level, counted = _standing(facts, sure, births, last, facts.backward_outputs, fused)
    own = {i: (_stands_from(facts, i, births, fused), stop) for i, stop in counted.items()}
    level += sum(values[i].bytes for i in facts.held_outputs if values[i].kind not in ("primal", "tangent"))
    for place, i in enumerate(facts.backward):
        level[place] += values[i].scratch
    return level, own, frozenset(sure)


def _beside(
    facts: JointFacts,
    fused: bool,
    reads: Mapping[int, Sequence[int]],
    first: Mapping[int, int],
    last: Mapping[int, int],
) -> dict[int, frozenset[int]]:
    """By forward storage that the backward reads: where it surely stands.

    Between the first and the last operator that reads it, if it is computed once; else while an operator reads it that
    fuses with nothing.
    """
    values, found = facts.values, {}
    for storage, places in reads.items():
        if storage in facts.held_outputs:
            continue
        if is_buffer(facts, storage):
            found[storage] = frozenset(range(first[storage], last[storage] + 1))
        elif values[storage].kind == "pointwise":
            readers = ((place, values[facts.backward[place]].kind) for place in places)
            found[storage] = frozenset(place for place, kind in readers if not fused or kind in ("extern", "tuple"))
    return found


__all__ = ["Moments", "is_buffer", "read_moments"]
