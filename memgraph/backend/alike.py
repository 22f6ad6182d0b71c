"""Graphs with collectives in them, which all of their ranks must plan alike."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch.distributed as dist

from memgraph.base import compat
from memgraph.machine.hardware import Hardware
from memgraph.planner.leaving import Tiers
from memgraph.reporting.report import Report
from memgraph.step.ranks import Ranks


def ranks_of(gm: Any, inputs: Any) -> Ranks | None:
    """The ranks that run a Dynamo graph together; None where nothing in it talks to others.

    Those of its process group; of all processes, where it has several groups: each rank is in other ones then.
    """
    groups = compat.collective_groups(gm, inputs)
    if not groups:
        return None
    members = groups.pop() if len(groups) == 1 else tuple(range(dist.get_world_size()))
    return Ranks(compat.default_store(), members, dist.get_rank())


@dataclasses.dataclass(frozen=True)
class Means:
    """What a plan is made with, besides the level of its launch."""

    budget: int | None
    hardware: Hardware
    tiers: Tiers

    def agreed(self, ranks: Ranks) -> Means:
        """The same for all ranks: the smallest budget, the least room of each tier, the first rank's figures.

        Raises RanksError, also where the ranks have different tiers.
        """
        names = " and ".join(tier.name for tier in self.tiers.tiers) or "none"
        ranks.same("the tiers that their options ask for", names)
        rooms = [tier.capacity for tier in self.tiers.tiers]
        rates = [(tier.out, tier.back, tier.page, tier.extra) for tier in self.tiers.tiers]
        mine = [self.budget, rooms, rates, self.hardware.to_json()]
        budget, rooms, rates, figures = ranks.agree("what a plan is made with", mine, _least)
        tiers = tuple(
            dataclasses.replace(tier, capacity=room, out=out, back=back, page=page, extra=extra)
            for tier, room, (out, back, page, extra) in zip(self.tiers.tiers, rooms, rates, strict=True)
        )
        return Means(budget, Hardware.from_json(figures), dataclasses.replace(self.tiers, tiers=tiers))


def _least(means: list[list[Any]]) -> list[Any]:
    budgets, rooms, rates, figures = zip(*means, strict=True)
    return [_smallest(budgets), [_smallest(each) for each in zip(*rooms, strict=True)], rates[0], figures[0]]


def _smallest(sizes: Any) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def name_of_plan(report: Report) -> str:
    """A hash of what was decided, without what may differ where shards are uneven."""
    told = [(decision.name, repr(decision.action)) for decision in report.decisions]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
