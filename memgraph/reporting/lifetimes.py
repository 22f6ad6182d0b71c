"""A timeline as buffers: each with its birth, its death, and what kind of memory it is."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterator, Mapping

from memgraph.facts.actions import Offload, Recompute
from memgraph.planner.decisions import Decision, Event, Reuse, Timeline, Where
from memgraph.reporting.figures import Figures


class Stuff(enum.Enum):
    """What kind of memory a buffer is; its text is what a reader sees."""

    SAVED = "saved"
    """From the forward to the backward."""

    OUTPUT = "outputs"
    """Returned to the user by the forward."""

    GRADIENT = "gradients"
    """Returned by the backward."""

    RECOMPUTED = "recomputed"
    """Computed again in the backward."""

    IN_FLIGHT = "in flight"
    """Of a value that goes to another tier, or has come back."""

    TRANSIENT = "transient"

    SCRATCH = "kernel scratch"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A stretch of time in which one value lies in memory."""

    value: str
    """The value that it holds, where that is known, or the name of Inductor's buffer."""

    bytes: int

    birth: int
    """The change that begins it, counted from 0."""

    death: int | None
    """The change that ends it; None where it outlives the step."""

    stuff: Stuff


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """A timeline as buffers.

    Its changes are the events of the timeline and its reuses: at a reuse one buffer ends, and another begins in its
    place.
    """

    buffers: tuple[Buffer, ...]
    """In the order of their births."""

    changes: tuple[Event | Reuse, ...]

    @property
    def times(self) -> list[float]:
        """When the changes are, in seconds; a reuse is as late as the event before it."""
        now, found = 0.0, []
        for change in self.changes:
            now = change.at if isinstance(change, Event) else now
            found.append(now)
        return found

    @property
    def forward(self) -> int:
        """The number of changes up to the last one of the forward, which counts."""
        return 1 + max((n for n, change in enumerate(self.changes) if change.phase == "forward"), default=-1)

    def sums(self) -> Mapping[Stuff, list[int]]:
        """Bytes of each kind after each change."""
        rows = {stuff: [0] * len(self.changes) for stuff in Stuff}
        for buffer in self.buffers:
            rows[buffer.stuff][buffer.birth] += buffer.bytes
            if buffer.death is not None:
                rows[buffer.stuff][buffer.death] -= buffer.bytes
        for row in rows.values():
            for number in range(1, len(row)):
                row[number] += row[number - 1]
        return rows


@dataclasses.dataclass
class _Life:
    """A buffer that is being found."""

    event: Event
    """Its allocation."""
    value: str
    birth: int
    death: int | None = None


def lifetimes(timeline: Timeline, figures: Figures) -> Lifetimes:
    """The buffers of one of a report's timelines.

    A free without an allocation is a buffer of negative size that stays: the sums are those of the timeline.
    """
    names = dict(figures.buffers)
    changes = tuple(_changes(timeline))
    found: list[_Life] = []
    standing: dict[tuple[str, Where, int], list[_Life]] = {}  # by name and bytes
    by_name: dict[str, _Life] = {}
    for number, change in enumerate(changes):
        if isinstance(change, Reuse):
            old = by_name.get(change.storage)
            if old is not None and old.death is None:
                new = _Life(old.event, change.value, number)
                old.death = number
                same = standing[old.event.value, old.event.where, old.event.bytes]
                same[same.index(old)] = by_name[change.storage] = new
                found.append(new)
            continue
        same = standing.setdefault((change.value, change.where, abs(change.bytes)), [])
        if change.bytes < 0 and same:
            same.pop(0).death = number
            continue
        life = _Life(change, names.get(change.value, change.value), number)
        found.append(life)
        if change.bytes > 0:
            same.append(life)
            by_name[change.value] = life
    actions = {decision.name: decision for decision in figures.decisions}
    end = Lifetimes((), changes).forward - 1
    made = (
        Buffer(life.value, life.event.bytes, life.birth, life.death, _stuff(life, actions.get(life.value), end))
        for life in found
    )
    return Lifetimes(tuple(made), changes)


def _changes(timeline: Timeline) -> Iterator[Event | Reuse]:
    """Events and reuses in their order."""
    reuses = collections.deque(timeline.reuses)
    for number, event in enumerate(timeline.events):
        while reuses and reuses[0].after <= number:
            yield reuses.popleft()
        yield event
    yield from reuses


def _stuff(life: _Life, decision: Decision | None, end: int) -> Stuff:
    """What kind of memory a buffer is.  end: the last change of the forward."""
    birth = life.event
    if birth.where is Where.KERNEL or birth.value.partition("#")[0].endswith(" scratch"):
        return Stuff.SCRATCH
    if decision is not None and isinstance(decision.action, Offload):
        return Stuff.IN_FLIGHT
    stays = life.death is None
    if life.birth <= end:
        if stays:
            return Stuff.OUTPUT
        return Stuff.SAVED if life.death is not None and life.death > end else Stuff.TRANSIENT
    if decision is not None and isinstance(decision.action, Recompute):
        return Stuff.RECOMPUTED
    if decision is not None and birth.phase == "forward":
        return Stuff.SAVED  # under the name that the backward has for it
    return Stuff.GRADIENT if stays else Stuff.TRANSIENT
