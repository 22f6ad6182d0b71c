"""The frozen values that leave the planner.

A decision is a value, never a mechanism: the passes realise it, the report prints it, the verifier checks that
the rewritten graph still means what the joint graph meant. Everything here is hashable and survives JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Action = Literal["save", "recompute", "offload", "tile"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What happens to one forward value that the backward needs, or to one region.

    name: the value's name in the joint graph; a region's first one.  bytes: its storage; a region's longest
    value, untiled.  action: save, recompute or offload; of a region tile.
    module: dotted module path, "" where the graph has none.  source: "file:line" of the user's code, or "".
    seconds: predicted time of computing the value once more (0 for a saved one).
    why: one phrase: what made the planner, a rule or a tag choose this.
    tier: where an offloaded value lies: "host" or "nvme"; "" for the others.  shards: of a region.
    fused: computed within the kernels that read it, in the forward and in the backward: its bytes are never held.
    """

    name: str
    bytes: int
    action: Action
    module: str = ""
    source: str = ""
    seconds: float = 0.0
    why: str = ""
    tier: str = ""
    shards: int = 0
    fused: bool = False


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

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Timeline:
        """What `rows` gave.  Raises TypeError or ValueError for anything else."""
        return cls(tuple(Event(*row) for row in rows))

    def rows(self) -> list[tuple[str, str, int]]:
        """Phase, name and bytes of each event, for JSON: a large graph has tens of thousands."""
        return [(event.phase, event.name, event.bytes) for event in self.events]

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


def node_name(operator: str, copy: int) -> str:
    """What the node of a step is called in the rewritten backward."""
    return operator if copy == 0 else f"{operator}_copy{copy}"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One value that leaves the device in the forward and is back in the backward.

    name: in the joint graph.  bytes: that are copied.  tier: "host" or "nvme".  finish: the operator of the forward
    after which the copy is done.  load: (operator, copy) of the backward before which the copy back starts.
    use: the one that reads it first.
    """

    name: str
    bytes: int
    tier: str
    finish: str
    load: tuple[str, int]
    use: tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions of one joint graph.

    saved: names of the values that cross to the backward.  backward: its operators in order, recomputation included.
    stock: Inductor's own split stands as it is (saved and backward then only describe it).
    decisions: one for every forward value that the backward reads and that holds bytes of its own.
    peak: bytes above the baseline, by the planner's sweep.  seconds: of recomputation beyond Inductor's own, and of
    waiting for copies.  transfers: values that leave the device, in the order of the forward.
    settled: sums of gradients in the backward that are written to memory one by one.
    """

    saved: tuple[str, ...]
    backward: tuple[Step, ...]
    stock: bool = False
    decisions: tuple[Decision, ...] = ()
    peak: int = 0
    seconds: float = 0.0
    transfers: tuple[Transfer, ...] = ()
    settled: tuple[str, ...] = ()

    def bytes_on(self, tier: str) -> int:
        """Bytes that one step keeps on a tier, before any rounding."""
        return sum(transfer.bytes for transfer in self.transfers if transfer.tier == tier)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        data: dict[str, Any] = json.loads(text)
        data["saved"] = tuple(data["saved"])
        data["settled"] = tuple(data["settled"])
        data["backward"] = tuple(Step(s["name"], s["copy"], tuple(s["reads"])) for s in data["backward"])
        data["decisions"] = tuple(Decision(**decision) for decision in data["decisions"])
        data["transfers"] = tuple(
            Transfer(**(t | {"load": tuple(t["load"]), "use": tuple(t["use"])})) for t in data["transfers"]
        )
        return cls(**data)
