"""One compiled graph under several plans: what each takes, and where it is valid."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from memgraph.planner.decisions import Timeline
from memgraph.reporting.report import Report
from memgraph.step.returned import Dropped

Sizes = tuple[int, ...]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Envelope:
    """What a forward and its backward allocate, in bytes above the level at which the forward began."""

    forward: int = 0
    """The forward's peak."""
    held: int = 0
    """Left allocated when the forward returns, until the backward."""
    backward: int = 0
    """The backward's peak, where nothing else has been allocated since the forward began."""

    @classmethod
    def of(cls, timeline: Timeline) -> Envelope:
        """The envelope of a step's timeline."""
        level = 0
        peaks = {"forward": 0, "backward": 0}
        held = 0
        for event in timeline.events:
            level += event.bytes
            peaks[event.phase] = max(peaks[event.phase], level)
            if event.phase == "forward":
                held = level
        return cls(peaks["forward"], held, max(held, peaks["backward"]))

    @property
    def peak(self) -> int:
        """The peak of a step that consists of this graph alone."""
        return max(self.forward, self.backward)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a launch finds allocated, and what will be allocated after it."""

    level: int
    """Bytes allocated on the device when the forward begins."""
    to_come: int = 0
    """Bytes that will be allocated later in the run and stay: the state of optimizers."""
    sizes: Sizes = ()
    """The values of the graph's symbolic sizes, in the order of its inputs; () where all sizes are fixed."""
    gradients: int = 0
    """Bytes of the level: gradients of the graph's parameters."""
    states: int = 0
    """Bytes of the level: the state of the optimizers that own these."""
    others: int = 0
    """Bytes of the level: what open launches hold until their backward."""
    later: int = 0
    """Bytes of gradients that other graphs, launched later, will have made when its backward begins."""
    own: int = 0
    """Bytes of the gradients that its own backward makes."""
    uncut: int = 0
    """Bytes of the level: what blocks count as more than was asked for."""
    to_rise: int = 0
    """Bytes by which the level may be higher in other steps, since blocks count as more there."""
    between: int = 0
    """Bytes above the level and what the launch holds that others are expected to reach before its backward."""
    once_more: bool = False
    """Whether what the forward saves is dropped, and its backward begins with the forward once more."""

    @property
    def lasting(self) -> int:
        """The level at which this launch will begin in later steps."""
        return self.level + self.to_come + self.to_rise

    @property
    def standing(self) -> tuple[tuple[str, int], ...]:
        """What the level is made of: a kind and its bytes."""
        known = ("gradients", self.gradients), ("optimizer state", self.states), ("other graphs", self.others)
        rest = self.level - sum(size for _, size in known)
        return tuple((what, size) for what, size in (("parameters and other tensors", rest), *known) if size > 0)

    def grown_since(self, first: Entry, optimizers: str) -> Iterator[tuple[str, int]]:
        """What stands now and did not at an earlier entry of the same graph, in bytes.  optimizers: their names."""
        more = self.level - first.level
        for what, size in (
            ("gradients that stand already", self.gradients - first.gradients),
            (f"state of {optimizers}", self.states - first.states),
            ("held by other graphs until their backward", self.others - first.others),
            ("other tensors", more),
        ):
            if (size := min(size, more)) > 0:
                yield what, size
                more -= size


@dataclasses.dataclass(frozen=True)
class Offer:
    """A plan that a graph could have, by the graph sweep: it is not compiled."""

    envelope: Envelope
    seconds: float
    """Predicted time of a step."""
    peak: int
    """Bytes that it reaches by the sweep. The planner finds the candidate again by this and `carried`."""
    carried: int
    """Bytes that the forward leaves allocated, by the sweep."""


@dataclasses.dataclass(eq=False)
class Variant:
    """A compiled graph under one plan."""

    call: Callable[..., Any]
    """The compiled graph: takes and returns what Dynamo's graph does."""
    seconds: float
    """Predicted time of a step."""
    envelopes: dict[Sizes, Envelope]
    """What was read from the generated code, by the sizes that it was read for."""
    read: Callable[[Sizes], Envelope] | None = None
    """Reads the envelope for other sizes from the generated code; None where there is none to read."""
    offers: tuple[Offer, ...] = ()
    """Other plans that the graph could have."""
    dropped: Dropped = ()
    """The outputs that the plan does not hold until the backward."""
    plain: bool = False
    """Whether it is about as fast as Inductor's own partition."""
    report: Report | None = None
    """What the process's log says of it; None where nothing does."""
    recorded: set[Hashable] = dataclasses.field(default_factory=set)
    """When launches of it were recorded: whether the round's plans were chosen together, and `Run.generation`."""
    name: str = ""
    """A hash of what its plan decides."""

    def envelope(self, sizes: Sizes) -> Envelope | None:
        """What it takes with some sizes; None where that is not known.

        Fewer tokens take no more: where the sizes lie within others that are known, those stand for them.
        """
        if sizes in self.envelopes:
            return self.envelopes[sizes]
        within = [found for known, found in self.envelopes.items() if _covers(known, sizes)]
        if within:
            return min(within, key=lambda envelope: envelope.peak)
        if self.read is None:
            return None
        try:
            found = self.envelopes[sizes] = self.read(sizes)
        except Exception:  # generated code that cannot be read with these sizes: a launch must not die of it
            _logger.debug("what a plan takes with sizes %s is not known", sizes, exc_info=True)
            return None
        return found

    def fits(self, entry: Entry, room: int) -> bool:
        """Whether its step stays within `room` bytes above the entry's lasting level."""
        envelope = self.envelope(entry.sizes)
        if envelope is None:
            return False
        backward = max(envelope.backward, envelope.forward) if entry.once_more else envelope.backward
        reaches = max(envelope.forward, envelope.held + entry.between, entry.later + backward)
        return reaches <= room - entry.lasting


def _covers(known: Sizes, sizes: Sizes) -> bool:
    return len(known) == len(sizes) and all(size <= most for size, most in zip(sizes, known, strict=True))
