"""A scheduled and swept choice, and the two ways to order choices."""

from __future__ import annotations

import dataclasses

from memgraph.facts.liveness import Sweep
from memgraph.planner.queues import Move
from memgraph.planner.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Candidate:
    """peak: bytes above the baseline.  seconds: of recomputation beyond Inductor's own choice.

    stock: this is Inductor's own choice, and its own split of the graph may stand as it is.
    moves: values that leave the device meanwhile.  stall: seconds that the step waits for them (`seconds` holds it).
    """

    schedule: Schedule
    forward: Sweep
    backward: Sweep
    peak: int
    seconds: float
    stock: bool = False
    moves: tuple[Move, ...] = ()
    stall: float = 0.0

    @property
    def carried(self) -> int:
        """Bytes that the forward leaves allocated: saved values and its other outputs."""
        found, deaths = self.forward.bytes, self.forward.deaths
        return sum(found[s] for s in found if s >= self.schedule.forward.inputs and s not in deaths)


def fastest(candidate: Candidate) -> tuple[float, int]:
    """Order by time; ties go to the lower peak."""
    return (round(candidate.seconds, 9), candidate.peak)


def smallest(candidate: Candidate) -> tuple[int, float]:
    """Order by peak; ties go to the faster."""
    return (candidate.peak, round(candidate.seconds, 9))
