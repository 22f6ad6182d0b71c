"""A timeline as buffers: each with its birth, its death, and what kind of memory it is."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from memgraph.facts.actions import Offload, Recompute
from memgraph.planner.decisions import Decision, Event, Timeline, Where
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
    """One allocation and its end."""

    value: str
    """The value that it holds, where that is known, or the name of Inductor's buffer."""

    bytes: int

    birth: int
    """The event that allocates it, counted from 0."""

    death: int | None
    """The event that frees it; None where it outlives the step."""

    stuff: Stuff


def buffers(timeline: Timeline, figures: Figures) -> list[Buffer]:
    """The buffers of one of a report's timelines, in the order of their births.

    A free without an allocation is a buffer of fewer than no bytes that stays: the sums are those of the timeline.
    """
    names = dict(figures.buffers)
    actions = {decision.name: decision for decision in figures.decisions}
    events = timeline.events
    births: list[int] = []
    deaths: dict[int, int] = {}  # by birth
    standing: dict[tuple[str, Where, int], list[int]] = {}  # by name and bytes, the births of buffers that stand
    for number, event in enumerate(events):
        same = standing.setdefault((event.value, event.where, abs(event.bytes)), [])
        if event.bytes < 0 and same:
            deaths[same.pop(0)] = number
            continue
        births.append(number)
        if event.bytes > 0:
            same.append(number)
    made = []
    for birth in births:
        death = deaths.get(birth)
        event = events[birth]
        value = names.get(event.value, event.value)
        stuff = _stuff(event, None if death is None else events[death], actions.get(value))
        made.append(Buffer(value, event.bytes, birth, death, stuff))
    return made


def _stuff(birth: Event, death: Event | None, decision: Decision | None) -> Stuff:
    if birth.where is Where.KERNEL or birth.value.partition("#")[0].endswith(" scratch"):
        return Stuff.SCRATCH
    if decision is not None and isinstance(decision.action, Offload):
        return Stuff.IN_FLIGHT
    if birth.phase == "forward":
        if death is None:
            return Stuff.OUTPUT
        return Stuff.SAVED if death.phase == "backward" else Stuff.TRANSIENT
    if decision is not None and isinstance(decision.action, Recompute):
        return Stuff.RECOMPUTED
    return Stuff.GRADIENT if death is None else Stuff.TRANSIENT


def sums(made: Sequence[Buffer], count: int) -> Mapping[Stuff, list[int]]:
    """Bytes of each kind after each of `count` events, for those who check a picture of them."""
    changes = {stuff: [0] * count for stuff in Stuff}
    for buffer in made:
        changes[buffer.stuff][buffer.birth] += buffer.bytes
        if buffer.death is not None:
            changes[buffer.stuff][buffer.death] -= buffer.bytes
    for row in changes.values():
        for number in range(1, count):
            row[number] += row[number - 1]
    return changes
