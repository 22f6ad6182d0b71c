"""The frozen values that leave the planner.

A decision is a value, never a mechanism: the passes realise it, the report prints it, the verifier checks that
the rewritten graph still means what the joint graph meant. Everything here is hashable and survives JSON.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

Action = Literal["save", "recompute"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What happens to one forward value that the backward needs.

    name: the value's name in the joint graph.  bytes: its storage.  action: save or recompute.
    module: dotted module path, "" where the graph has none.  source: "file:line" of the user's code, or "".
    seconds: predicted time of computing the value once more (0 for a saved one).
    why: one phrase: what made the planner, a rule or a tag choose this.
    """

    name: str
    bytes: int
    action: Action
    module: str = ""
    source: str = ""
    seconds: float = 0.0
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Something that was asked for and not done, with the reason."""

    what: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Event:
    """One change of the allocated bytes.  phase: "forward" or "backward".  bytes: positive is an allocation."""

    phase: Literal["forward", "backward"]
    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Allocated bytes above the baseline, one event after another, over the forward and then the backward."""

    events: tuple[Event, ...] = ()

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

    def live_at_peak(self) -> tuple[Event, ...]:
        """The allocations that stand when the peak is reached, largest first."""
        sums = self.sums()
        if not sums:
            return ()
        top = sums.index(max(sums))
        live: dict[str, Event] = {}
        for event in self.events[: top + 1]:
            if event.bytes > 0:
                live[event.name] = event
            else:
                live.pop(event.name, None)
        return tuple(sorted(live.values(), key=lambda event: -event.bytes))


@dataclasses.dataclass(frozen=True)
class Step:
    """One operator of the backward.  name: in the joint graph.  copy: 0 for the first time that it runs there.

    reads: for each of its inputs, in order, which copy it reads.
    """

    name: str
    copy: int
    reads: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions of one joint graph.

    saved: names of the values that cross to the backward.  backward: its operators in order, recomputation included.
    stock: Inductor's own split stands as it is (saved and backward then only describe it).
    decisions: one for every forward value that the backward reads and that holds bytes of its own.
    peak: bytes above the baseline, by the planner's sweep.  seconds: of recomputation beyond Inductor's own.
    """

    saved: tuple[str, ...]
    backward: tuple[Step, ...]
    stock: bool = False
    decisions: tuple[Decision, ...] = ()
    peak: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        data: dict[str, Any] = json.loads(text)
        data["saved"] = tuple(data["saved"])
        data["backward"] = tuple(Step(s["name"], s["copy"], tuple(s["reads"])) for s in data["backward"])
        data["decisions"] = tuple(Decision(**decision) for decision in data["decisions"])
        return cls(**data)
