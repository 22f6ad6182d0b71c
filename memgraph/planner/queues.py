"""Where copies to another tier and back begin and end, and what they make the step wait for.

    forward    x is born ── copy out, in order of birth ──> done: x's bytes are given back
    backward   bytes are taken, copy back begins ── ... ──> x's first use

One queue a tier and direction, each as fast as its link. The copies out start at birth; each ends at the first
operator by which the queue is predicted to be through with it. The copies back start as late as still hides them.
A window bounds the bytes that are under way: a smaller one gives memory back earlier and makes the step wait longer.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.planner.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Tier:
    """A place for offloaded values.  out, back: bytes a second.  capacity: bytes, None for no limit.

    only_rules: only what a rule sends there goes there.  page, extra: a value takes whole pages (bytes) there, for
    itself and so many bytes more.  gpudirect: the way that out and back are figures of, which the runtime is told.
    limit: the most bytes that the runtime may take in all, other graphs' with them, None for no limit.
    why: what the capacity is, to read; no part of the value, as it may tell what is free to the byte.
    """

    name: str
    out: float
    back: float
    capacity: int | None = None
    only_rules: bool = False
    page: int = 1
    extra: int = 0
    gpudirect: bool = False
    limit: int | None = None
    why: str = dataclasses.field(default="", compare=False, repr=False)

    def room(self, size: int) -> int:
        """Bytes that a value of `size` bytes takes."""
        return -(-(size + self.extra) // self.page) * self.page


@dataclasses.dataclass(frozen=True)
class Move:
    """One value that leaves and returns.

    finish: slot of the forward by whose end the copy is done.  load: step of the backward before which the copy back
    starts.  use: the step that reads it first.
    """

    value: int
    tier: str
    finish: int
    load: int
    use: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """A schedule with copies.  stall: seconds that the step waits for them."""

    schedule: Schedule
    moves: tuple[Move, ...]
    stall: float


class Clock:
    """When each slot of a schedule's programs begins and ends, each counted from the start of its direction."""

    def __init__(self, facts: JointFacts, schedule: Schedule) -> None:
        values = facts.values
        forward, backward = schedule.forward, schedule.backward
        self.forward = list(
            itertools.accumulate(0.0 if s < forward.inputs else values[v].seconds for s, v in enumerate(forward.values))
        )
        steps = backward.values[backward.inputs :]
        self.backward = list(itertools.accumulate((values[v].seconds for v in steps), initial=0.0))
        self.slot = {v: s for s, v in enumerate(forward.values)}
        self.last_read = list(range(len(forward.values)))  # through views as well: they share the bytes
        for s in range(forward.inputs, len(forward.values)):
            for read in forward.reads[s]:
                owner = self.slot.get(values[forward.values[read]].storage, read)
                self.last_read[owner] = s
        self.first_use: dict[int, int] = {}
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

    window: bytes that may be under way beyond the one value that is copied anyway; 0 waits for every copy at once.
    """
    chosen = sorted(chosen, key=lambda pair: clock.slot[pair[0]])
    finish, out_stall = _out(facts, clock, chosen, window)
    load, back_stall = _back(facts, clock, chosen, window)
    moves = tuple(Move(v, tier.name, finish[v], load[v], clock.first_use[v]) for v, tier in chosen)
    return Placement(with_moves(schedule, clock, moves), moves, out_stall + back_stall)


def _out(facts: JointFacts, clock: Clock, chosen: Sequence[tuple[int, Tier]], window: float):
    """The slot by which each value has left, and the seconds that the forward waits."""
    free: dict[str, float] = {}  # when each tier's queue is through
    finish: dict[int, int] = {}
    ends: dict[int, float] = {}
    waiting: list[int] = []  # values under way, first come first
    delay = 0.0
    last = len(clock.forward) - 1
    for v, tier in chosen:
        born = clock.slot[v]
        size = facts.values[v].bytes
        waiting = [w for w in waiting if ends[w] > clock.forward[born] + delay]
        while waiting and sum(facts.values[w].bytes for w in waiting) > window:
            first = waiting.pop(0)
            # Before anything else is copied, this one has to be gone: the step waits for it here.
            finish[first] = min(finish[first], max(born, clock.last_read[clock.slot[first]]))
            delay = max(delay, ends[first] - clock.forward[born])
        start = max(clock.forward[born] + delay, free.get(tier.name, 0.0))
        free[tier.name] = ends[v] = start + size / tier.out
        if window == 0:
            delay = max(delay, ends[v] - clock.forward[born])
        at = bisect.bisect_left(clock.forward, ends[v] - delay, lo=born)
        finish[v] = max(min(at, last), clock.last_read[born])
        waiting.append(v)
    if ends:
        delay = max(delay, max(ends.values()) - clock.forward[-1])
    return finish, delay


def _back(facts: JointFacts, clock: Clock, chosen: Sequence[tuple[int, Tier]], window: float):
    """The step before which each value's copy back starts, and the seconds that the backward waits."""
    order = sorted(chosen, key=lambda pair: (clock.first_use[pair[0]], clock.slot[pair[0]]))
    latest: dict[int, float] = {}
    limit: dict[str, float] = {}
    for v, tier in reversed(order):
        use = clock.backward[clock.first_use[v]]
        latest[v] = min(use, limit.get(tier.name, use)) - facts.values[v].bytes / tier.back
        limit[tier.name] = latest[v]
    load: dict[int, int] = {}
    free: dict[str, float] = {}
    delay, ahead = 0.0, 0
    pending: list[int] = []  # loaded before it is used
    for v, tier in order:
        use = clock.first_use[v]
        at = min(max(0, bisect.bisect_right(clock.backward, latest[v]) - 1), use)
        pending.append(v)
        ahead += facts.values[v].bytes
        while len(pending) > 1 and ahead - facts.values[v].bytes > window:
            first = pending.pop(0)  # it has to be used before this one may come
            ahead -= facts.values[first].bytes
            at = min(use, max(at, clock.first_use[first]))
        if window == 0:
            at = use
        load[v] = at
        start = max(clock.backward[at] + delay, free.get(tier.name, 0.0))
        free[tier.name] = end = start + facts.values[v].bytes / tier.back
        delay = max(delay, end - clock.backward[use])
    return load, delay


def with_moves(schedule: Schedule, clock: Clock, moves: Sequence[Move]) -> Schedule:
    """The same schedule with the bytes of the moved values gone meanwhile."""
    gone = {move.value: move for move in moves}
    old = schedule.forward
    forward = Program(
        values=old.values,
        reads=old.reads,
        inputs=old.inputs,
        outputs=frozenset(s for s in old.outputs if old.values[s] not in gone),
        owned=old.owned,
        until=tuple((clock.slot[move.value], move.finish) for move in moves),
    )
    return dataclasses.replace(schedule, forward=forward, backward=_reloaded(schedule.backward, gone))


def _reloaded(old: Program, gone: Mapping[int, Move]) -> Program:
    """The backward's program with a load in place of each moved input."""
    at: dict[int, list[int]] = {}
    for v, move in gone.items():
        at.setdefault(move.load, []).append(v)
    values: list[int] = []
    reads: list[tuple[int, ...]] = []
    new: dict[int, int] = {}  # old slot -> new slot
    loads: list[int] = []
    place = {v: s for s, v in enumerate(old.values[: old.inputs])}
    for s in range(old.inputs):
        if old.values[s] not in gone:
            new[s] = len(values)
            values.append(old.values[s])
            reads.append(())
    inputs = len(values)
    for s in range(old.inputs, len(old.values)):
        for v in sorted(at.get(s - old.inputs, ())):
            new[place[v]] = len(values)
            loads.append(len(values))
            values.append(v)
            reads.append(())
        new[s] = len(values)
        values.append(old.values[s])
        reads.append(tuple(new[read] for read in old.reads[s]))
    return Program(
        values=tuple(values),
        reads=tuple(reads),
        inputs=inputs,
        outputs=frozenset(new[s] for s in old.outputs),
        owned=frozenset(new[s] for s in old.owned if new[s] < inputs),
        loads=frozenset(loads),
    )
