"""A plan that was lowered, and what the next one is planned for where it takes more bytes than it may."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from memgraph.backend.budget import Bound
from memgraph.backend.joint_graph import SPARE
from memgraph.backend.planned import Planned
from memgraph.backend.records import Accepted, Lowest
from memgraph.reporting.report import Report

# Where lowering misses the sweep of the plan with the lowest peak by more than this share, another one is tried, too.
MISSED = 0.05


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A plan that was lowered."""

    bound: Bound
    """What the plan was made for."""
    compiled: Any
    """What Dynamo calls in place of its graph."""
    planned: Planned
    tier_bytes: Mapping[str, int]
    """Bytes that one step keeps on each tier, by the tier's name, nested regions included."""
    report: Report
    above: int
    """Bytes above the baseline that a step reaches with the sizes of the launch."""
    beside: int = 0
    """Bytes that graphs like this one hold beside it."""

    @property
    def reaches(self) -> int:
        """Bytes above the baseline, with what stands beside it."""
        return self.above + self.beside

    @property
    def planned_for(self) -> int:
        """The bytes that it was to reach, by the sweep."""
        plan, chosen = self.planned.plan, self.planned.chosen
        return plan.peak + self.bound.beside(plan.peak, chosen.carried)


@dataclasses.dataclass(frozen=True)
class Next:
    """The bound of the next attempt."""

    bound: Bound
    resort: Bound | None = None
    """The bound of a plan that is known to fit: taken where the planner does not know what else to try."""
    functions: bool = False
    """Whether one function holds several kernels, as on the CPU, and with them all that they read and write."""

    def final(self) -> Next:
        """The bound of the last attempt: that of a plan that is known to fit, else the lowest peak that there is."""
        lowest = dataclasses.replace(self.bound, last=True, kernel_ends=self.functions)
        return Next(lowest if self.resort is None else self.resort, functions=self.functions)

    def after(self, missed: Attempt, limit: int) -> Next | None:
        """The bound after an attempt that reached more than the limit; None where nothing is left to try."""
        if self.functions and not self.bound.kernel_ends and missed.planned.more_ends:
            return dataclasses.replace(self, bound=dataclasses.replace(self.bound, kernel_ends=True))
        planner_knows_nothing_smaller = missed.planned_for > limit - self.bound.margin
        if planner_knows_nothing_smaller and missed.planned.outlining.by_itself:
            # Bodies take a little that no sweep knows of. And each refusal ends in the same plan: that of layers as
            # they are, as the last attempt has it.
            return dataclasses.replace(self, bound=dataclasses.replace(self.bound, bodies=False))
        if self.bound.last or planner_knows_nothing_smaller:
            return self._near(missed) if self.resort is None else self.final()
        if (
            missed.planned.plain and not self.bound.others
        ):  # now its peak is known; by the sweep it would be chosen again
            return dataclasses.replace(self, bound=dataclasses.replace(self.bound, unplanned=missed.above))
        # Lowering is taken to miss the sweep of the next plan by as much as it missed this one's.
        target = missed.planned_for - (missed.reaches - limit)
        margin = limit - (target if self.bound.others else int(target / (1 - SPARE)))
        bound = dataclasses.replace(self.bound, margin=max(margin, self.bound.margin + 1))
        return dataclasses.replace(self, bound=bound)

    def _near(self, lowest: Attempt) -> Next | None:
        """The bound after the lowest peak there is: a plan near it, where lowering missed the sweep by much."""
        if self.bound.near or self.bound.others or lowest.reaches <= lowest.planned_for * (1 + MISSED):
            return None
        return Next(dataclasses.replace(self.bound, last=True, near=True), functions=self.functions)


def plans_of(tried: Sequence[Attempt]) -> int:
    """How many plans were tried: one that was lowered again, with ends of kernels, is the same plan."""
    ended = (dataclasses.replace(attempt.bound, kernel_ends=True) for attempt in tried)
    again = sum(attempt.bound == before for before, attempt in zip(ended, tried[1:], strict=False))
    return len(tried) - again


def first_attempt(
    wanted: Bound, kept: Accepted | None, lowest: Lowest | None, limit: int | None, *, functions: bool = False
) -> Next:
    """The bound of the first attempt: that of the plan that was accepted before, else what the options ask for.

    limit: bytes above the baseline that a step may reach, where that is known.  functions: as of `Next`.
    """
    if lowest is None or limit is None or lowest.above > limit:
        return Next(wanted if kept is None else kept.bound, functions=functions)
    if kept is not None:
        return Next(kept.bound, lowest.bound, functions)
    if lowest.above > limit * (1 - SPARE):  # there is no room for anything faster
        return Next(lowest.bound, functions=functions)
    return Next(wanted, lowest.bound, functions)
