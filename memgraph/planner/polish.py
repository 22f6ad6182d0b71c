"""Improve a choice one value at a time, every step scheduled and swept.

Problem: a cut proposes saved sets by sums. Near the best of them, which single values should change sides?

    fill     recomputed values are saved again while the bound has room: those first whose recomputation is dearest a
             byte, later ones before equal earlier ones (what is saved late lives shortly)
    copied   the same values are saved, and others of the recomputed ones are computed once more

Why not a library: local search is a dozen lines; what it takes is a judge for each step, and that is the sweep.

Algorithm: `fill` saves at once what seems to have room (room.py). Where the sweep says that it has not, half of it is
tried, down to a single value, which is left out from then on; where it has, the room that is left is filled again.
It stops after a number of sweeps and never by the clock, so that two runs, and two ranks of one job, find the same
plan.

Oracle: tests/properties/test_plans.py compares the planner with every saved set of small graphs (test_brute_force).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from memgraph.facts.actions import Recompute
from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import LARGE, Candidate, Candidates, by_time
from memgraph.planner.copies import Copies
from memgraph.planner.room import Room

Units = Callable[[Candidate], list[frozenset[int]]]

# How many values all sweeps of one polish may visit together: about a second on one core.
EFFORT = 60_000
# The same where no plan fits, or where the best one may be far from the best there is.
THOROUGH = 16 * EFFORT
# Sweeps that a polish of a large graph may make all the same.
LEAST = 16


def fill(candidates: Candidates, start: Candidate, bound: int) -> Candidate:
    """The fastest candidate found whose peak stays at or under the bound."""
    starts = [start]
    # The second start takes a dozen sweeps, and is rarely the better one.
    if len(candidates.facts.values) <= LARGE:
        units = [frozenset((i,)) for i in worth_saving(candidates, start)]
        starts.append(_with_dearest(candidates, start, bound, units))
    return min((filled(candidates, base, bound) for base in starts), key=by_time)


def filled(candidates: Candidates, start: Candidate, bound: int) -> Candidate:
    """The candidate with whatever single values saved that have room."""

    def single(base: Candidate) -> list[frozenset[int]]:
        return [frozenset((i,)) for i in worth_saving(candidates, base)]

    return with_all_that_fit(candidates, start, bound, single)


def _with_dearest(candidates: Candidates, start: Candidate, bound: int, units: Sequence[frozenset[int]]) -> Candidate:
    """The candidate with as many of the first units saved as the bound allows, found by bisection."""
    best, low, high = start, 1, len(units)
    while low <= high:
        middle = (low + high) // 2
        found = candidates.of(frozenset(start.schedule.saved).union(*units[:middle]), start.schedule.copies)
        if found is not None and found.peak <= bound:
            best, low = min(best, found, key=by_time), middle + 1
        else:
            high = middle - 1
    return best


def with_all_that_fit(candidates: Candidates, start: Candidate, bound: int, find: Units) -> Candidate:
    """The candidate with whatever units saved that seem to have room, where the sweep says that they have.

    find: of a candidate, the recomputed values that may be saved instead, in groups that are saved together; those
    first that are worth most.
    """
    best, left, allowed = start, sweeps(candidates.facts), math.inf
    skipped: set[frozenset[int]] = set()
    while left > 0:
        wanted = (unit for unit in find(best) if unit not in skipped)
        chosen, size = _with_room(Room(candidates.facts, best, bound), wanted, allowed)
        if not chosen:
            break
        left -= 1
        found = candidates.of(frozenset(best.schedule.saved).union(*chosen), best.schedule.copies)
        if found is not None and found.peak <= bound and by_time(found) < by_time(best):
            best, allowed = found, math.inf
        elif len(chosen) > 1:
            allowed = size / 2
        else:
            skipped.update(chosen)
    return best


def _with_room(room: Room, units: Iterable[frozenset[int]], most: float) -> tuple[list[frozenset[int]], int]:
    """The units that have room one beside another, and their bytes.  most: the bytes that they may take."""
    chosen, size = [], 0
    for unit in units:
        taken = room.take(unit, most - size)
        if taken is not None:
            chosen.append(unit)
            size += taken
    return chosen, size


def copied(candidates: Candidates, base: Candidate, bound: int) -> Candidate:
    """The fastest candidate under the bound that saves what the base saves, with whatever copies."""
    found = (candidates.of(*key) for key in _copied(candidates, base))
    return min([base, *(c for c in found if c is not None and c.peak <= bound)], key=by_time)


def sweeps(facts: JointFacts, effort: int = EFFORT) -> int:
    """How many candidates one polish may sweep.  effort: how many values all its sweeps may visit together."""
    return max(LEAST, effort // max(1, len(facts.values)))


def worth_saving(candidates: Candidates, base: Candidate) -> list[int]:
    """Recomputed values that may be saved instead, dearest a byte first."""
    values = candidates.facts.values
    again = [
        i
        for i in base.schedule.recomputed
        if candidates.may_save(i) and values[i].bytes and values[i].seconds > values[i].hold
    ]
    return sorted(again, key=lambda i: ((values[i].hold - values[i].seconds) / values[i].bytes, -i))


def near(candidates: Candidates, base: Candidate) -> Iterator[tuple[frozenset[int], Copies]]:
    """Saved sets and copies that differ from the base by one value, by its copies, or by both."""
    yield from _copied(candidates, base)
    kinds = (base.schedule.copies, *(kind for _, kind in _copied(candidates, base)))
    for kind in kinds:
        for saved in changes(candidates, base):  # one by one: a large graph has millions, and few are tried
            yield saved, kind


def _copied(candidates: Candidates, base: Candidate) -> Iterator[tuple[frozenset[int], Copies]]:
    """The saved set of the base with each other kind of copies."""
    for kind in Copies if candidates.copies else (Copies.NONE,):
        if kind is not base.schedule.copies:
            yield frozenset(base.schedule.saved), kind


def changes(candidates: Candidates, base: Candidate) -> Iterator[frozenset[int]]:
    """Saved sets that differ from the base by one value: saved, dropped, or exchanged for another."""
    values, saved = candidates.facts.values, frozenset(base.schedule.saved)
    droppable = [i for i in base.schedule.saved if may_drop(candidates.facts, i)]
    for i in worth_saving(candidates, base):
        yield saved | {i}
    for i in sorted(droppable, key=lambda i: (-values[values[i].storage].bytes, i)):
        yield saved - {i}
    for i in droppable:
        for j in candidates.savable:
            if j not in saved:
                yield saved - {i} | {j}


def may_drop(facts: JointFacts, i: int) -> bool:
    """Whether a saved value may be computed again instead."""
    value = facts.values[i]
    pinned = value.pin is not None and not value.pinned(Recompute)
    return value.kind != "primal" and value.fixed is None and not pinned
