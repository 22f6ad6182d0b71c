"""Where copies to another tier and back begin and end, and what they make the step wait for.

    forward    x is born ── copy out, in order of birth ──> done: x's bytes are given back
    backward   bytes are taken, copy back begins ── ... ──> x's first use

Problem: the values that leave are given. When does each copy start, by which operator is it done, how long does the
step wait, and how many bytes are under way at once?

Why not a library: it is one walk over two queues, and the result has to be a program that the sweep understands.

Algorithm: one queue a tier and direction, each as fast as its link. The copies out start at birth; each ends at the
first operator by which the queue is predicted to be through with it. The copies back start as late as still hides them.
A window bounds the bytes that are under way: a smaller one gives memory back earlier and makes the step wait longer.
Where copies have no engines of their own, a copy that hides still takes a share of its time from the operators beside
it (`Tier.drag`); for one that the step waits for anyway, nothing is taken. And each value that leaves takes a time of
its own (`Tier.each`), whatever its size.

Oracle: tests/planner/test_queues.py plays the copies on a clock of its own; the step waits no longer than predicted.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.planner.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Tier:
    """A place for offloaded values, and the figures of the way there."""

    name: str
    """ "host" or "nvme"."""
    out: float
    """Bytes a second, away from the device."""
    back: float
    """Bytes a second, back to the device."""
    capacity: int | None = None
    """Bytes that this graph may take; None for no limit."""
    only_rules: bool = False
    """Only those values go there that a rule sends."""
    page: int = 1
    """A value takes whole pages of so many bytes, for itself and for `extra`."""
    extra: int = 0
    """Bytes that a value takes beside its own."""
    gpudirect: bool = False
    """`out` and `back` are figures of GPUDirect, and the runtime is to copy that way."""
    limit: int | None = None
    """The most bytes that the runtime may take in all, other graphs' with them; None for no limit."""
    drag: float = 0.0
    """Seconds that a second of copying takes from the operators beside it, 0 to 1: the CPU's cores copy too, a GPU has
    engines for it."""
    each: float = 0.0
    """Seconds that the operators lose for each value that goes out and back, however small: a CPU's cores hand out its
    copies and are woken for them."""
    why: str = dataclasses.field(default="", compare=False, repr=False)
    """What the capacity is, to read. Not compared: it may tell what is free to the byte."""

    def room(self, size: int) -> int:
        """Bytes that a value of `size` bytes takes."""
        return -(-(size + self.extra) // self.page) * self.page

    def seconds(self, size: int) -> float:
        """How long `size` bytes are copied, out and back."""
        return size / self.out + size / self.back

    def taken(self, size: int) -> float:
        """Seconds that the operators lose for a value of `size` bytes that goes out and back while they run."""
        return self.each + self.drag * self.seconds(size)


@dataclasses.dataclass(frozen=True)
class Move:
    """A transfer as the planner has it: values and steps are indices."""

    value: int
    tier: str
    finish: int
    """The slot of the forward by whose end the copy out is done."""
    load: int
    """The step of the backward before which the copy back starts."""
    use: int
    """The step of the backward that reads the value first."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """A schedule with copies."""

    schedule: Schedule
    moves: tuple[Move, ...]
    stall: float
    """Seconds that the step waits for the copies."""
    drag: float
    """Seconds that the values which leave take from the operators: `Tier.each`, and `Tier.drag` of what hides."""


class Clock:
    """When each slot of a schedule's programs begins and ends, in seconds from the start of its direction."""

    def __init__(self, facts: JointFacts, schedule: Schedule) -> None:
        values = facts.values
        forward, backward = schedule.forward, schedule.backward
        self.forward = list(
            itertools.accumulate(0.0 if s < forward.inputs else values[v].seconds for s, v in enumerate(forward.values))
        )
        """When each slot of the forward ends."""
        steps = backward.values[backward.inputs :]
        self.backward = list(itertools.accumulate((values[v].seconds for v in steps), initial=0.0))
        """When each step of the backward begins, and when the last one ends."""
        self.slot = {v: s for s, v in enumerate(forward.values)}
        """By value: its slot in the forward."""
        self.last_read = list(range(len(forward.values)))
        """By slot of the forward: the last slot that reads it, through views as well, since they share the bytes."""
        for s in range(forward.inputs, len(forward.values)):
            for read in forward.reads[s]:
                owner = self.slot.get(values[forward.values[read]].storage, read)
                self.last_read[owner] = s
        self.first_use: dict[int, int] = {}
        """By saved value: the step of the backward that reads it first."""
        for step, reads in enumerate(backward.reads[backward.inputs :]):
            for read in reads:
                if read < backward.inputs:
                    self.first_use.setdefault(backward.values[read], step)


def place(
    facts: JointFacts,
    schedule: Schedule,
    clock: Clock,
    chosen: Sequence[tuple[int, Tier]],
    window: float,
) -> Placement:
    """Put the copies of the chosen saved values into a schedule.

    window: bytes that may be under way beside the one value that is copied anyway; with 0 the step waits for each copy.
    """
    chosen = sorted(chosen, key=lambda pair: clock.slot[pair[0]])
    finish, out_stall = _out(facts, clock, chosen, window)
    load, back_stall = _back(facts, clock, chosen, window)
    moves = tuple(Move(v, tier.name, finish[v], load[v], clock.first_use[v]) for v, tier in chosen)
    stall = out_stall + back_stall
    return Placement(with_moves(schedule, clock, moves), moves, stall, drag(facts, chosen, stall))


def drag(facts: JointFacts, chosen: Iterable[tuple[int, Tier]], stall: float) -> float:
    """Seconds that values which leave take from the operators, where the step waits for `stall` seconds of the copies.

    Which copies it waits for does not matter: the share of all copies that hides is taken.
    """
    chosen = list(chosen)
    copies = [(tier.seconds(facts.values[v].bytes), tier.drag) for v, tier in chosen]
    total = sum(seconds for seconds, _ in copies)
    hidden = max(0.0, 1 - stall / total) if total else 0.0
    return hidden * sum(seconds * share for seconds, share in copies) + sum(tier.each for _, tier in chosen)


def _out(
    facts: JointFacts, clock: Clock, chosen: Sequence[tuple[int, Tier]], window: float
) -> tuple[dict[int, int], float]:
    """By value: the slot by which it has left. And the seconds that the forward waits."""
    free: dict[str, float] = {}  # when each tier's queue is through
    finish: dict[int, int] = {}
    ends: dict[int, float] = {}
    under_way: list[int] = []  # first come first
    delay = 0.0
    last = len(clock.forward) - 1
    for v, tier in chosen:
        born = clock.slot[v]
        under_way = [w for w in under_way if ends[w] > clock.forward[born] + delay]
        while under_way and sum(facts.values[w].bytes for w in under_way) > window:
            oldest = under_way.pop(0)
            # The oldest has to be gone before anything else is copied: the step waits for it here.
            finish[oldest] = min(finish[oldest], max(born, clock.last_read[clock.slot[oldest]]))
            delay = max(delay, ends[oldest] - clock.forward[born])
        start = max(clock.forward[born] + delay, free.get(tier.name, 0.0))
        free[tier.name] = ends[v] = start + facts.values[v].bytes / tier.out
        if window == 0:
            delay = max(delay, ends[v] - clock.forward[born])
        at = bisect.bisect_left(clock.forward, ends[v] - delay, lo=born)
        finish[v] = max(min(at, last), clock.last_read[born])
        under_way.append(v)
    if ends:
        delay = max(delay, max(ends.values()) - clock.forward[-1])
    return finish, delay


def _back(
    facts: JointFacts, clock: Clock, chosen: Sequence[tuple[int, Tier]], window: float
) -> tuple[dict[int, int], float]:
    """By value: the step before which its copy back starts. And the seconds that the backward waits."""
    order = sorted(chosen, key=lambda pair: (clock.first_use[pair[0]], clock.slot[pair[0]]))
    latest = _latest(facts, clock, order)
    load: dict[int, int] = {}
    free: dict[str, float] = {}  # when each tier's queue is through
    delay, ahead, not_before = 0.0, 0, 0
    unused: list[int] = []  # values whose copy back starts before the one at hand is needed
    for v, tier in order:
        size, use = facts.values[v].bytes, clock.first_use[v]
        at = min(max(0, bisect.bisect_right(clock.backward, latest[v]) - 1), use)
        unused.append(v)
        ahead += size
        while len(unused) > 1 and ahead - size > window:
            oldest = unused.pop(0)  # it has to be used before this one may come, and so before those behind this one
            ahead -= facts.values[oldest].bytes
            not_before = clock.first_use[oldest]
        at = min(use, max(at, not_before))
        if window == 0:
            at = use
        load[v] = at
        start = max(clock.backward[at] + delay, free.get(tier.name, 0.0))
        free[tier.name] = end = start + size / tier.back
        delay = max(delay, end - clock.backward[use])
    return load, delay


def _latest(facts: JointFacts, clock: Clock, order: Sequence[tuple[int, Tier]]) -> dict[int, float]:
    """By value: the latest second of the backward at which its copy back may start without any wait.

    Neither it nor those behind it in its queue then make the step wait.
    """
    latest: dict[int, float] = {}
    limit: dict[str, float] = {}
    for v, tier in reversed(order):
        use = clock.backward[clock.first_use[v]]
        latest[v] = min(use, limit.get(tier.name, use)) - facts.values[v].bytes / tier.back
        limit[tier.name] = latest[v]
    return latest


def with_moves(schedule: Schedule, clock: Clock, moves: Sequence[Move]) -> Schedule:
    """The same schedule without the bytes of the moved values while they are away."""
    gone = {move.value: move for move in moves}
    old = schedule.forward
    forward = dataclasses.replace(
        old,
        outputs=frozenset(s for s in old.outputs if old.values[s] not in gone),
        until=tuple((clock.slot[move.value], move.finish) for move in moves),
    )
    return dataclasses.replace(schedule, forward=forward, backward=_reloaded(schedule.backward, gone))


def _reloaded(old: Program, gone: Mapping[int, Move]) -> Program:
    """The backward's program with a load in place of each moved input."""
    before: dict[int, list[int]] = {}  # by step: what is loaded before it
    for v, move in gone.items():
        before.setdefault(move.load, []).append(v)
    old_slot = {v: s for s, v in enumerate(old.values[: old.inputs])}
    new_slot: dict[int, int] = {}  # by old slot
    values: list[int] = []
    reads: list[tuple[int, ...]] = []
    loads: list[int] = []

    def append(s: int) -> None:
        new_slot[s] = len(values)
        values.append(old.values[s])
        reads.append(tuple(new_slot[read] for read in old.reads[s]))

    for s in range(old.inputs):
        if old.values[s] not in gone:
            append(s)
    inputs = len(values)
    for s in range(old.inputs, len(old.values)):
        for v in sorted(before.get(s - old.inputs, ())):
            loads.append(len(values))
            append(old_slot[v])
        append(s)
    return Program(
        values=tuple(values),
        reads=tuple(reads),
        inputs=inputs,
        outputs=frozenset(new_slot[s] for s in old.outputs),
        owned=frozenset(new_slot[s] for s in old.owned if new_slot[s] < inputs),
        loads=frozenset(loads),
        settled=frozenset(new_slot[s] for s in old.settled),
    )
