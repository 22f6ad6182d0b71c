"""What was planned for a joint graph: what reports, attempts and kept plans are made of."""

from __future__ import annotations

import dataclasses
import functools

from memgraph.base.errors import Binding
from memgraph.facts.identity import Identity
from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate
from memgraph.planner.course import Course, timeline
from memgraph.planner.decisions import Plan, Refusal, Timeline
from memgraph.planner.outlining import Outlining
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from memgraph.step.variants import Offer


@dataclasses.dataclass(frozen=True)
class Planned:
    """A joint graph after planning."""

    plan: Plan
    facts: JointFacts
    """Of the graph as it was planned, with its tiles."""
    chosen: Candidate
    """The candidate that the plan is made of."""
    stock: Candidate
    """Inductor's own partition of the same graph."""
    bound: int | None
    """Bytes above the baseline that were asked for, before the margin."""
    refusals: tuple[Refusal, ...]
    num_fwd_outputs: int
    dropped: tuple[int, ...]
    """Positions of the forward's outputs that the user drops before the backward begins."""
    unplanned: Timeline
    """A step of the graph without tiles, as Inductor partitions it."""
    unplanned_seconds: float
    """Predicted time of that step."""
    seconds: float
    """Predicted time of the planned step."""
    offers: tuple[Offer, ...] = ()
    """Other plans of the graph, where the bound asks for them."""
    full: tuple[tuple[Tier, int], ...] = ()
    """Tiers that had too little room for a better plan, with the bytes that it needed."""
    tiers: tuple[Tier, ...] = ()
    """Where values may go."""
    planner: Planner | None = None
    """Of the graph with its tiles."""
    limit: int | None = None
    """Bytes above the baseline that the plan was made for, by the sweep; None for no bound."""
    untiled: JointFacts | None = None
    """Facts of the graph without tiles; None where that is the graph as it was planned."""
    more_ends: bool = False
    """Whether kernels could end in more places, so that no function of C++ holds more than that."""
    outlining: Outlining = Outlining()
    """Which layers became bodies."""
    identity: Identity | None = None
    """Which graph it is; None where nobody asks."""

    @functools.cached_property
    def course(self) -> Course:
        """When the operators of a step run under the chosen plan, and the copies beside them."""
        return Course(self.facts, self.chosen, self.tiers)

    def least(self) -> Least | None:
        """What no plan of the graph with these tiles can beat under this plan's bound; None where that is not known."""
        if self.planner is None or self.limit is None:
            return None
        bounds = self.planner.bounds
        under = bounds.under(max(self.limit, self.chosen.peak))
        if under is None:
            return None
        return Least(self.seconds - self.chosen.seconds + under.seconds, under.price, bounds.smallest())

    @property
    def plain(self) -> bool:
        """Whether the graph is as Inductor would have it."""
        return self.plan.stock and not self.plan.tiled

    def binding(self) -> tuple[Binding, ...]:
        """What stands at the peak of the chosen plan, by the sweep, largest first."""
        values = {value.name: value for value in self.facts.values}
        live = timeline(self.facts, self.chosen).live_at_peak()
        return tuple(
            Binding(event.label, event.bytes, value.module, value.source)
            for event in live
            if (value := values.get(event.value)) is not None
        )


@dataclasses.dataclass(frozen=True)
class Least:
    """What no plan of a graph can beat."""

    seconds: float
    """Time of a step, under the bound of the plan."""
    price: float
    """Seconds of a step that one more byte of that bound is worth, by the relaxation."""
    peak: int
    """Bytes above the baseline, by the sweep, whatever the bound."""
