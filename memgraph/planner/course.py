"""The course of a planned step: what is allocated when, which operator runs when, and when copies are under way.

Times are predicted seconds from the start of the step. An operator begins when the one before it has ended and the
copies that it waits for are done; a tier's copies in one direction go one after another. What copies take from the
operators beside them (`Tier.drag`) is known of a whole step alone: no operator here is longer for it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program, Sweep
from memgraph.facts.values import Value
from memgraph.planner.candidates import Candidate, dropped_storages
from memgraph.planner.decisions import Described, Doing, Event, Phase, Reuse, Timeline, Where, Work
from memgraph.planner.queues import Move, Tier

DIGITS = 9  # of a time in seconds: nanoseconds
Span = tuple[float, float]
# What the passes add to the name of a value: of one that is computed once more, and of one that comes back from a tier.
ADDED = re.compile(r"(_copy\d+|_reload_start|_reloaded)$")


class Course:
    """When the slots of a candidate's programs begin and end, and what else is done meanwhile."""

    def __init__(self, facts: JointFacts, candidate: Candidate, tiers: Iterable[Tier] = ()) -> None:
        self.facts, self.candidate = facts, candidate
        self._tiers = {tier.name: tier for tier in tiers}
        self._recomputed = candidate.schedule.recomputed
        self._now = 0.0
        self._free: dict[str, float] = {}  # by lane, when its last copy is done
        self._done: dict[int, float] = {}  # by value, when its copy is done
        self.works: list[Work] = []
        """In the order in which they were begun; stretches of one kind in a row are one."""
        self.forward = self._forward()
        """By slot of the forward, when its step begins and ends; an input is there from the start."""
        self.backward = self._backward()
        """By slot of the backward."""

    def of(self, phase: Phase) -> list[Span]:
        return self.forward if phase == "forward" else self.backward

    def _forward(self) -> list[Span]:
        program = self.candidate.schedule.forward
        leaving = {move.value: move for move in self.candidate.moves}
        gone: dict[int, list[Move]] = {}
        for move in self.candidate.moves:
            gone.setdefault(move.finish, []).append(move)
        spans: list[Span] = []
        for slot, i in enumerate(program.values):
            spans.append((self._now, self._now) if slot < program.inputs else self._run(i, Doing.FORWARD))
            if i in leaving and slot >= program.inputs:
                self._copy(leaving[i], out=True)
            for move in gone.get(slot, ()):
                self._wait(move.value)
        for move in self.candidate.moves:
            self._wait(move.value)
        return spans

    def _backward(self) -> list[Span]:
        program, ours = self.candidate.schedule.backward, set(self.facts.backward)
        coming = {move.value: move for move in self.candidate.moves}
        uses: dict[int, list[Move]] = {}
        for move in self.candidate.moves:
            uses.setdefault(move.use, []).append(move)
        spans: list[Span] = []
        step = 0
        for slot, i in enumerate(program.values):
            if slot in program.loads:
                self._copy(coming[i], out=False)
            if slot < program.inputs or slot in program.loads:
                spans.append((self._now, self._now))
                continue
            for move in uses.get(step, ()):
                self._wait(move.value)
            spans.append(self._run(i, Doing.BACKWARD if i in ours else Doing.RECOMPUTE))
            step += 1
        return spans

    def _run(self, i: int, doing: Doing) -> Span:
        """One operator; those of one region in a row are one work."""
        value, start = self.facts.values[i], self._now
        self._now += value.seconds
        names = self.facts.region_names
        self._add(Work("compute", doing, names[value.region] if names else "", start, self._now))
        return start, self._now

    def _wait(self, i: int) -> None:
        end = self._done[i]
        if end > self._now:
            self._add(Work("compute", Doing.WAIT, self.facts.values[i].name, self._now, end))
            self._now = end

    def _copy(self, move: Move, *, out: bool) -> None:
        tier, value = self._tiers.get(move.tier), self.facts.values[move.value]
        rate = 0.0 if tier is None else tier.out if out else tier.back
        lane = f"{move.tier} {'out' if out else 'back'}"
        start = max(self._now, self._free.get(lane, 0.0))
        end = start + (value.bytes / rate if rate else 0.0)
        self._free[lane] = self._done[move.value] = end
        self._add(Work(lane, Doing.COPY, value.name, start, end))

    def _add(self, work: Work) -> None:
        last = self.works[-1] if self.works else None
        if (
            last is not None
            and last.end == work.start
            and (last.lane, last.doing, last.name)
            == (
                work.lane,
                work.doing,
                work.name,
            )
        ):
            self.works[-1] = dataclasses.replace(last, end=work.end)
        else:
            self.works.append(work)

    def rounded(self) -> tuple[Work, ...]:
        """The works to the nanosecond, without those that take no time; copies are all there."""
        return tuple(
            dataclasses.replace(work, start=round(work.start, DIGITS), end=round(work.end, DIGITS))
            for work in self.works
            if work.end > work.start or work.doing is Doing.COPY
        )

    def moments(self, phase: Phase) -> dict[str, float]:
        """By the name of a value, when its operator first begins."""
        schedule = self.candidate.schedule
        program = schedule.forward if phase == "forward" else schedule.backward
        found: dict[str, float] = {}
        for slot in range(program.inputs, len(program.values)):
            if slot not in program.loads:
                found.setdefault(self.facts.values[program.values[slot]].name, self.of(phase)[slot][0])
        return found

    def reads(self) -> dict[str, tuple[float, ...]]:
        """By the name of a storage, the times at which steps that read it begin."""
        found: dict[str, set[float]] = {}
        schedule = self.candidate.schedule
        sides: tuple[tuple[Phase, Program, Sweep], ...] = (
            ("forward", schedule.forward, self.candidate.forward),
            ("backward", schedule.backward, self.candidate.backward),
        )
        for phase, program, swept in sides:
            spans = self.of(phase)
            for slot, reads in enumerate(program.reads):
                for read in reads:
                    name, _ = _storage(self.facts.values, phase, program, swept.storage_of[read])
                    found.setdefault(name, set()).add(round(spans[slot][0], DIGITS))
        return {name: tuple(sorted(times)) for name, times in found.items()}


def described(course: Course, plain: JointFacts, names: Iterable[str]) -> tuple[Described, ...]:
    """What is known of the values that bear these names.  plain: the facts of the graph without tiles."""
    reads = course.reads()
    known = {value.name: value for facts in (plain, course.facts) for value in facts.values}
    return tuple(
        Described(
            name,
            value.label.operator,
            value.label.dtype,
            value.label.shape,
            value.module or value.label.module,
            value.source,
            reads.get(name, ()),
        )
        for name in dict.fromkeys(names)
        if (value := known.get(name)) is not None
    )


def named(origins: Mapping[str, Sequence[str]], known: Collection[str]) -> dict[str, str]:
    """By buffer of Inductor's, the value that it holds, of those that are known.  origins: the nodes it comes from."""
    found = {}
    for buffer, names in origins.items():
        plain = (name if name in known else ADDED.sub("", name) for name in names)
        value = next((name for name in plain if name in known), None)
        if value is not None:
            found[buffer] = value
    return found


def held(read: Timeline, names: Mapping[str, str], known: Collection[str]) -> tuple[Timeline, dict[str, str]]:
    """A timeline that was read from generated code, with those of its reuses after which a storage holds another value.

    names: of the values, by buffer; returned as they are known then.  known: all names of values. A variable that bears
    one is an input of the backward, named after the value that it holds: no other value is written to its storage.
    """
    found = dict(names)
    last: dict[str, int] = {}  # by storage, the place of its last reuse
    reuses: list[Reuse] = []
    for reuse in read.reuses:
        place = last.get(reuse.storage)
        variable = reuse.value.partition(".")[2]
        if reuse.value in names:
            value = names[reuse.value]
            if value != (found.get(reuse.storage) if place is None else reuses[place].value):
                last[reuse.storage] = len(reuses)
                reuses.append(dataclasses.replace(reuse, value=value))
        elif variable in known and place is None:
            found[reuse.storage] = variable
        elif variable in known and place is not None:
            reuses[place] = dataclasses.replace(reuses[place], value=variable)
    return dataclasses.replace(read, reuses=tuple(reuses)), found


def timed(read: Timeline, course: Course, names: Mapping[str, str]) -> Timeline:
    """A timeline that was read from generated code, with the times of the values that its buffers hold.

    Inductor may allocate earlier or later than the plan has it. The time of an event lies halfway between the latest of
    those before it and the earliest of those after it: so times grow. Without names for most of its allocations a
    timeline stays without times.  names: of the values, by buffer.
    """
    moments = {phase: course.moments(phase) for phase in ("forward", "backward")}
    spans = {phase: (spans[0][0], spans[-1][1]) for phase, spans in _sides(course) if spans}
    known = [
        moments[event.phase].get(names.get(event.value, event.value)) if event.bytes > 0 else None
        for event in read.events
    ]
    allocations = sum(event.bytes > 0 for event in read.events)
    if 2 * sum(time is not None for time in known) < allocations or len(spans) < 2:
        return read
    bounds = [spans[event.phase] for event in read.events]
    before = itertools.accumulate((b[0] if t is None else t for t, b in zip(known, bounds, strict=True)), max)
    backwards = [b[1] if t is None else t for t, b in zip(known, bounds, strict=True)][::-1]
    after = list(itertools.accumulate(backwards, min))[::-1]
    times = [round((low + high) / 2, DIGITS) for low, high in zip(before, after, strict=True)]
    events = (dataclasses.replace(event, at=at) for event, at in zip(read.events, times, strict=True))
    return dataclasses.replace(read, events=tuple(events))


def _sides(course: Course) -> tuple[tuple[Phase, list[Span]], tuple[Phase, list[Span]]]:
    return ("forward", course.forward), ("backward", course.backward)


def timeline(facts: JointFacts, candidate: Candidate, course: Course | None = None) -> Timeline:
    """The sweep of a candidate as events, with the names of the joint graph.  course: their times; None for none."""
    program, swept = candidate.schedule.forward, candidate.forward
    spans = (None, None) if course is None else (course.forward, course.backward)
    forward = list(_events(facts.values, "forward", program, swept, spans[0]))
    end = forward[-1].at if forward else 0.0
    for storage in sorted(dropped_storages(candidate.schedule, swept)):
        name, where = _storage(facts.values, "forward", program, storage)
        forward.append(Event("forward", name, -swept.bytes[storage], where, end))
    backward = _events(facts.values, "backward", candidate.schedule.backward, candidate.backward, spans[1])
    return Timeline((*forward, *backward))


def _events(
    values: Sequence[Value], phase: Phase, program: Program, swept: Sweep, spans: list[Span] | None
) -> Iterator[Event]:
    born, dying = _by_slot(swept.births), _by_slot(swept.deaths)

    def change(storage: int, sign: int, at: float) -> Iterator[Event]:
        if size := swept.bytes[storage]:
            name, where = _storage(values, phase, program, storage)
            yield Event(phase, name, sign * size, where, at)

    for slot in range(len(program.values)):
        start, end = (0.0, 0.0) if spans is None else (round(time, DIGITS) for time in spans[slot])
        # In place where the sweep says so: the bytes that die are given back before the new ones are taken.
        reused = swept.in_place.get(slot)
        if reused is not None:
            yield from change(reused, -1, start)
        if slot >= program.inputs:
            for storage in born.get(slot, ()):
                yield from change(storage, 1, start)
            value = values[program.values[slot]]
            if value.scratch:
                yield Event(phase, value.name, value.scratch, Where.KERNEL, start)
                yield Event(phase, value.name, -value.scratch, Where.KERNEL, end)
        for storage in dying.get(slot, ()):
            if storage != reused:
                yield from change(storage, -1, end)


def _by_slot(slots: dict[int, int]) -> dict[int, list[int]]:
    """Storages by the slot that they are born or die at."""
    found: dict[int, list[int]] = {}
    for storage, slot in slots.items():
        found.setdefault(slot, []).append(storage)
    return found


def _storage(values: Sequence[Value], phase: Phase, program: Program, slot: int) -> tuple[str, Where]:
    """The storage that the value in `slot` owns, as events name it."""
    value = program.values[slot]
    if slot < program.inputs:
        return values[values[value].storage].name, Where.NAMED
    return values[value].name, Where.BACKWARD if phase == "backward" else Where.NAMED
