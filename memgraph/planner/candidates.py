"""Candidates: a set of saved values, scheduled and swept.

Problem: how high does the step peak, and how long does it take, if exactly these values cross to the backward?

    saved values ── schedule.py ──> two programs ── facts/liveness.py ──> peak, seconds

Why not a library: a solver for sums of bytes and seconds (an integer program, a cut) does not see what recomputation
itself keeps live. With one, a plan of 389 MiB peaked at 425 MiB (docs/decisions/0003). So a search of this room only
proposes saved sets, and the sweep of the whole step judges them.

Algorithm: schedule, sweep the forward, sweep the backward on top of what the forward left. Every saved set is judged
once: `Candidates` keeps what it has seen.

Oracle: tests/properties/test_plans.py runs random plans with an interpreter that counts bytes; the peaks are equal.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping

from memgraph.facts.actions import Recompute
from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Sweep, sweep
from memgraph.planner.copies import Copies
from memgraph.planner.cut import needed_values
from memgraph.planner.moments import Moments, read_moments
from memgraph.planner.narrows import Narrow, read_narrows
from memgraph.planner.needs import Needs
from memgraph.planner.queues import Move
from memgraph.planner.schedule import Schedule, Unschedulable, make_schedule
from memgraph.planner.wholes import copied_parts, write_wholes

# A graph of more values than this is large: a sweep of it takes long, and every search tries less.
LARGE = 4_000


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A scheduled and swept choice of what to save."""

    schedule: Schedule
    forward: Sweep
    backward: Sweep
    peak: int
    """Bytes above the baseline."""
    seconds: float
    """Time beyond Inductor's own choice: of recomputation, of writing saved values, of copies."""
    stock: bool = False
    """This is Inductor's own choice, and its own split of the graph may stand as it is."""
    moves: tuple[Move, ...] = ()
    """Values that are in another tier between forward and backward."""
    stall: float = 0.0
    """The part of `seconds` in which the step waits for copies."""
    drag: float = 0.0
    """The part of `seconds` that copies take from the operators beside them."""

    @property
    def carried(self) -> int:
        """Bytes that the forward leaves allocated: saved values and its other outputs."""
        return _carried(self.schedule, self.forward)


def _carried(schedule: Schedule, forward: Sweep) -> int:
    found, gone = forward.bytes, forward.deaths.keys() | dropped_storages(schedule, forward)
    program = schedule.forward
    copied = {forward.storage_of[slot] for slot in program.copied}
    return sum(found[s] for s in found if (s >= program.inputs or s in copied) and s not in gone)


def dropped_storages(schedule: Schedule, forward: Sweep) -> frozenset[int]:
    """The storages of outputs that the user drops before the backward begins."""
    found = {forward.storage_of[slot] for slot in schedule.forward.dropped}
    return frozenset(storage for storage in found if storage >= schedule.forward.inputs and storage in forward.births)


def by_time(candidate: Candidate) -> tuple[float, int]:
    """A sort key: the fastest first; of two that take equally long, the smaller."""
    return (round(candidate.seconds, 9), candidate.peak)


def by_peak(candidate: Candidate) -> tuple[int, float]:
    """A sort key: the lowest peak first; of two equal ones, the faster."""
    return (candidate.peak, round(candidate.seconds, 9))


class Candidates:
    """Turns saved sets of one joint graph into candidates, each saved set once."""

    def __init__(self, facts: JointFacts, *, fused: bool = True, copies: Copies = Copies.OF_HELD) -> None:
        """fused: sweep as Inductor allocates; else as the FX interpreter does.  copies: the default of `of`."""
        facts = facts if fused else facts.interpreted
        self.facts, self.fused, self.copies = facts, fused, copies
        self._parts = any(value.part for value in facts.values)
        base = make_schedule(facts, facts.stock_saved, copies, settle=False, fused=fused)
        self.stock_time = self._seconds(base)
        """Seconds that Inductor's own choice recomputes, and writes what would not be written otherwise."""
        self.stock_step = sum(facts.values[i].seconds for i in (*facts.forward, *facts.backward)) + self.stock_time
        """The seconds of a step by Inductor's own choice."""
        self.stock = dataclasses.replace(self.evaluate(base), stock=True)
        """Inductor's own choice."""
        self._seen: dict[tuple[frozenset[int], Copies], Candidate] = {}
        # A plan of ours settles sums of gradients, what they add, gradients that Inductor writes twice, parts of
        # gradients, and masks and what is read in a larger size that the backward computes again (schedule.py). In a
        # graph without them, the set that Inductor saves is its own choice.
        again = ((v.masks or v.expanded) and i in base.recomputed for i, v in enumerate(facts.values))
        settled = itertools.chain((v.accumulates or v.early or v.twice or v.part for v in facts.values), again)
        if not any(settled):
            self._seen[frozenset(base.saved), copies] = self.stock

    def of(self, saved: frozenset[int], copies: Copies | None = None) -> Candidate | None:
        """The candidate that saves these values; None if the backward needs others, or would recompute a pinned one."""
        key = (saved, self.copies if copies is None else copies)
        if key not in self._seen:
            try:
                schedule = make_schedule(self.facts, *key)
            except Unschedulable:
                return None
            if any(map(self._must_save, schedule.recomputed)):
                return None
            self._seen[key] = self.evaluate(schedule)
        return self._seen[key]

    def evaluate(self, schedule: Schedule) -> Candidate:
        """Sweep a schedule."""
        values = self.facts.values
        forward, backward = (sweep(values, side, self.fused) for side in (schedule.forward, schedule.backward))
        if self._parts:
            program, backward = write_wholes(values, schedule.backward, backward)
            schedule = dataclasses.replace(schedule, backward=program)
        peak = max(forward.peak, _carried(schedule, forward) + backward.peak)
        return Candidate(schedule, forward, backward, peak, self._seconds(schedule) - self.stock_time)

    def _seconds(self, schedule: Schedule) -> float:
        """Seconds of what is computed again, and of what fusion would not write: saved values, masks, copied parts."""
        values, backward = self.facts.values, schedule.backward
        settled = (values[backward.values[slot]] for slot in backward.settled)
        written = sum(value.hold for value in settled if value.masks)
        copied = sum(values[i].hold for i in copied_parts(values, backward)) if self._parts else 0.0
        return sum(schedule.seconds) + sum(values[i].hold for i in schedule.saved) + written + copied

    @functools.cached_property
    def savable(self) -> tuple[int, ...]:
        """Values that may be saved and from which the backward's reads come."""
        return tuple(i for i in needed_values(self.facts) if self.may_save(i))

    @functools.cached_property
    def readers(self) -> dict[int, list[int]]:
        """By value, the values of the forward that read it."""
        found: dict[int, list[int]] = {}
        for i in self.facts.forward:
            for read in self.facts.values[i].inputs:
                found.setdefault(read, []).append(i)
        return found

    # What follows is asked for by each linear program of the graph.

    @functools.cached_property
    def moments(self) -> Moments:
        """What stands at each operator whatever is planned."""
        return read_moments(self.facts, fused=self.fused)

    @functools.cached_property
    def needs(self) -> Needs:
        """How the values that the backward needs depend on one another."""
        return Needs(self.facts)

    @functools.cached_property
    def narrows(self) -> Mapping[int, Narrow]:
        """By place of the backward, what stands there in whichever way its inputs are made."""
        return read_narrows(self.facts, self.moments) if self.fused else {}  # the interpreter writes all values

    def _must_save(self, i: int) -> bool:
        """Whether a pin keeps a value from being recomputed."""
        return self.may_save(i) and self.facts.values[i].pin is not None

    def may_save(self, i: int) -> bool:
        """Whether a value may cross to the backward: it is a tensor, no view, and no pin says `recompute`."""
        value = self.facts.values[i]
        return value.savable and value.kind != "view" and not value.pinned(Recompute)
