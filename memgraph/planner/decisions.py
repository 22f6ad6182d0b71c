"""The frozen values that leave the planner.

A decision is a value, never a mechanism: the passes realise it, the report prints it, the verifier checks that
the rewritten graph still means what the joint graph meant. Everything here is hashable and survives JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from memgraph.base.sizes import round_up
from memgraph.facts.actions import LEVERS, Action, Tile
from memgraph.machine.caching_allocator import in_blocks

Phase = Literal["forward", "backward"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What happens to one forward value that the backward needs, or to one token region."""

    name: str
    """The value's name in the joint graph; of a region, that of its first output."""

    bytes: int
    """Of its storage; of a region, of its widest value before it is tiled."""

    action: Action

    module: str = ""
    """The dotted module path, "" where the graph has none."""

    source: str = ""
    """The place in the user's code, as "file:line", or ""."""

    seconds: float = 0.0
    """The predicted time of all recomputations of the value in one step."""

    why: str = ""
    """The reason, as one phrase to read."""

    fused: bool = False
    """Whether only the kernels that read the value compute it, in both directions: its bytes are never allocated."""

    alternatives: tuple[tuple[str, float], ...] = ()
    """Other actions that were possible, as the options spell them, and the seconds of each by itself: of writing the
    value to memory where it is fused otherwise, of running its operator again, of copying its bytes away and back."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: `action` is the lever's name, and the fields of the action stand beside it."""
        return vars(self) | {"action": self.action.lever} | vars(self.action)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """The decision that `to_dict` wrote. Raises KeyError or TypeError for any other data."""
        kind = LEVERS[data["action"]]
        own = {field.name: data[field.name] for field in dataclasses.fields(kind)}
        rest = {name: value for name, value in data.items() if name not in own}
        others = tuple((action, seconds) for action, seconds in rest.pop("alternatives", ()))
        return cls(**rest | {"action": kind(**own), "alternatives": others})


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Something that was asked for and not done, with the reason."""

    what: str
    reason: str


class Where(enum.Enum):
    """Which bytes an event speaks of, and the mark that its label carries."""

    NAMED = ""
    """The storage that the value's name stands for."""

    BACKWARD = "backward"
    """A storage that the backward computes: of a gradient, or of a recomputed value."""

    KERNEL = "shards"
    """Kernel scratch of the operator that computes the value."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One change of the allocated bytes."""

    phase: Phase

    value: str
    """The name of the value, or of Inductor's buffer."""

    bytes: int
    """Positive for an allocation, negative for a deallocation."""

    where: Where = Where.NAMED

    at: float = 0.0
    """Predicted seconds from the start of the step; 0 in a timeline of which no times are known."""

    @property
    def label(self) -> str:
        """What a trace, a picture or an error calls it."""
        return self.value if self.where is Where.NAMED else f"{self.value}@{self.where.value}"


@dataclasses.dataclass(frozen=True)
class Reuse:
    """A storage that comes to hold another value: generated code gives it away instead of freeing it."""

    after: int
    """How many events of the timeline come before it."""

    storage: str
    """As events name it."""

    value: str
    """What it holds from now on."""

    phase: Phase = "backward"


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Allocated bytes above the baseline, one event after another, over the forward and then the backward."""

    events: tuple[Event, ...] = ()

    reuses: tuple[Reuse, ...] = ()
    """In their order; only where generated code was read."""

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Timeline:
        """The timeline that `rows` wrote. Raises TypeError or ValueError for any other data."""
        return cls(tuple(Event(phase, value, size, Where(where), *at) for phase, value, size, where, *at in rows))

    def rows(self) -> list[tuple[Any, ...]]:
        """Plain data for JSON, one short row for each event: a large graph has tens of thousands."""
        rows = [(event.phase, event.value, event.bytes, event.where.value, event.at) for event in self.events]
        return rows if self.timed else [row[:-1] for row in rows]

    @property
    def timed(self) -> bool:
        """Whether times of the events are known."""
        return any(event.at for event in self.events)

    def sums(self) -> list[int]:
        """Allocated bytes above the baseline after each event."""
        total, sums = 0, []
        for event in self.events:
            total += event.bytes
            sums.append(total)
        return sums

    @property
    def peak(self) -> int:
        """Highest sum of allocated bytes above the baseline."""
        return max(self.sums(), default=0)

    def in_blocks(self) -> Timeline:
        """The same events with the bytes of whole blocks of CUDA's caching allocator.

        They are those of the highest of several steps in a row, as of `caching_allocator.in_blocks`.
        """
        changes = [((event.value, event.where), event.bytes) for event in self.events]
        sizes = zip(self.events, in_blocks(changes), strict=True)
        return Timeline(tuple(dataclasses.replace(event, bytes=size) for event, size in sizes), self.reuses)

    def in_multiples(self, of: int) -> Timeline:
        """The same events with their bytes rounded up to multiples."""
        sizes = ((event, round_up(abs(event.bytes), of)) for event in self.events)
        events = (dataclasses.replace(event, bytes=size if event.bytes > 0 else -size) for event, size in sizes)
        return Timeline(tuple(events), self.reuses)

    def above(self, level: int) -> Timeline:
        """The same events between an allocation of `level` bytes more and its free; reuses are left out."""
        if not self.events:
            return self
        first, last = (Event(event.phase, "", level) for event in (self.events[0], self.events[-1]))
        return Timeline((first, *self.events, dataclasses.replace(last, bytes=-level)))

    def live_at_peak(self) -> tuple[Event, ...]:
        """The allocations that stand when the peak is reached, largest first."""
        sums = self.sums()
        if not sums:
            return ()
        top = sums.index(max(sums))
        live: dict[tuple[str, Where], list[Event]] = {}  # several where copies of one value stand
        for event in self.events[: top + 1]:
            there = live.setdefault((event.value, event.where), [])
            if event.bytes > 0:
                there.append(event)
            elif there:
                there.pop(0)
        return tuple(sorted(itertools.chain(*live.values()), key=lambda event: -event.bytes))


class Doing(enum.Enum):
    """What a lane of the device does; in JSON, its text."""

    FORWARD = "forward"

    BACKWARD = "backward"

    RECOMPUTE = "recompute"

    WAIT = "wait"
    """For a copy."""

    COPY = "copy"


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A stretch of a step in which one thing is done, as predicted."""

    lane: str
    """"compute", or a tier and a direction: "host out", "nvme back"."""

    doing: Doing

    name: str
    """The region of the operators; of a copy and of waiting, the value."""

    start: float
    """Seconds from the start of the step."""

    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What is known of a value that events and decisions name."""

    name: str

    operator: str = ""
    """What computes it, such as "aten::mm"; "" for an input of the graph."""

    dtype: str = ""

    shape: tuple[int, ...] = ()

    module: str = ""
    """The dotted module path; of a value of the backward, that of the module whose gradient it serves."""

    source: str = ""
    """The place in the user's code, as "file:line", or ""."""

    reads: tuple[float, ...] = ()
    """When operators that read it begin, in predicted seconds from the start of the step."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One operator of the backward."""

    name: str
    """Its name in the joint graph."""

    copy: int
    """How many times it ran in the backward before."""

    reads: tuple[int, ...]
    """Which copy of each of its inputs it reads, in their order."""


def node_name(operator: str, copy: int) -> str:
    """The name of a step's node in the rewritten backward."""
    return operator if copy == 0 else f"{operator}_copy{copy}"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One value that leaves the device in the forward and is back in the backward."""

    name: str
    """Its name in the joint graph."""

    bytes: int
    """How many bytes are copied."""

    tier: str
    """Where they go: "host" or "nvme"."""

    finish: str
    """The operator of the forward after which the copy is done."""

    load: tuple[str, int]
    """The operator of the backward, and its copy, before which the copy back starts."""

    use: tuple[str, int]
    """The operator of the backward, and its copy, that reads the value first."""


@dataclasses.dataclass(frozen=True)
class KernelEnd:
    """A place where no kernel goes on."""

    phase: Phase

    before: str
    """The node of that graph before which kernels end."""

    written: tuple[str, ...] = ()
    """Nodes that have been written to memory by then, by kernels that end here."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions of one joint graph."""

    saved: tuple[str, ...]
    """Names of the values that cross to the backward."""

    backward: tuple[Step, ...]
    """The operators of the backward in their order, recomputation included."""

    stock: bool = False
    """Whether Inductor's own split stands as it is: `saved`, `forward` and `backward` only describe it then."""

    decisions: tuple[Decision, ...] = ()
    """One for each tiled region, and one for each forward value with bytes of its own that the backward reads."""

    peak: int = 0
    """Bytes above the baseline, by the planner's sweep."""

    seconds: float = 0.0
    """Predicted seconds beyond Inductor's own choice: of recomputation, of writing saved values, of waiting for copies.
    Below 0 where the plan is faster."""

    transfers: tuple[Transfer, ...] = ()
    """The values that leave the device, in the order of the forward."""

    settled: tuple[str, ...] = ()
    """The nodes of the backward that are written to memory although their readers could have them inlined: sums of
    gradients, one by one, masks of random numbers, and what an operator reads in a larger size."""

    forward: tuple[str, ...] = ()
    """The operators of the forward in their order; empty in plans that earlier versions made: as in the joint graph."""

    kernel_ends: tuple[KernelEnd, ...] = ()
    """Where kernels end that Inductor would go on with: one function would hold more than the bound allows."""

    @property
    def tiled(self) -> bool:
        """Whether some region runs in shards."""
        return any(isinstance(decision.action, Tile) for decision in self.decisions)

    def ends_in(self, phase: Phase) -> bool:
        """Whether kernels of one of the graphs end by the plan."""
        return any(end.phase == phase for end in self.kernel_ends)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["backward"] = [(step.name, step.copy, step.reads) for step in self.backward]
        data["decisions"] = [decision.to_dict() for decision in self.decisions]
        data["transfers"] = [vars(transfer) for transfer in self.transfers]
        data["kernel_ends"] = [(end.phase, end.before, end.written) for end in self.kernel_ends]
        return data

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` wrote. Raises KeyError, TypeError or ValueError for any other data."""
        data = dict(given)
        data["saved"] = tuple(data["saved"])
        data["settled"], data["forward"] = tuple(data["settled"]), tuple(data.get("forward", ()))
        data["backward"] = tuple(Step(name, copy, tuple(reads)) for name, copy, reads in data["backward"])
        data["decisions"] = tuple(map(Decision.from_dict, data["decisions"]))
        data["kernel_ends"] = tuple(
            KernelEnd(phase, before, tuple(written)) for phase, before, written in data.get("kernel_ends", ())
        )
        data["transfers"] = tuple(
            Transfer(**(t | {"load": tuple(t["load"]), "use": tuple(t["use"])})) for t in data["transfers"]
        )
        return cls(**data)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote. Raises KeyError, TypeError or ValueError for any other text."""
        return cls.from_dict(json.loads(text))

    def without_sources(self) -> Plan:
        """The same plan without the lines of the user's code, which are files of one machine."""
        decisions = tuple(dataclasses.replace(decision, source="") for decision in self.decisions)
        return dataclasses.replace(self, decisions=decisions)
