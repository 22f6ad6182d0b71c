"""A joint graph as Inductor's own partitioner cuts it, with tiles and without.

    joint graph ── shards of its token regions ──> tiled joint graph ── Inductor's partitioner ──> Cut

A cut depends on no bound, no tier and no size: it is made once for each number of shards, and many plans are made of
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import fx

from memgraph import passes
from memgraph.backend.options import Options
from memgraph.backend.rewriting import check_joint, rewrite
from memgraph.backend.rules import apply_rules, protect
from memgraph.backend.tiling import Tiling
from memgraph.base import compat
from memgraph.facts.actions import Pin
from memgraph.passes.graphs import Joint, Split, TilePlan
from memgraph.planner.decisions import Decision
from memgraph.planner.tiles import Shards
from memgraph.verify.rewrite import snapshot


@dataclasses.dataclass(frozen=True)
class Cut:
    """A joint graph with some regions tiled, and its two halves."""

    split: Split
    """Inductor's own partition."""
    before: fx.GraphModule | None
    """The same joint graph before Inductor's partitioner rewrote it, to verify against; None without verification."""
    pins: Mapping[str, Pin]
    """By the names of nodes, what rules of the user and the graph itself decide."""
    tiles: tuple[Decision, ...] = ()
    shards: Shards = ()
    """By group of regions, as they were asked for."""


class Cuts:
    """The cuts of one joint graph."""

    def __init__(self, joint: Joint, joint_inputs: Any, options: Options, tiling: Tiling, stock_args: Any) -> None:
        self.joint, self.options, self.tiling = joint, options, tiling
        self._joint_inputs, self._stock_args = joint_inputs, stock_args
        self._made: dict[Shards, Cut] = {}
        # Each cut has a copy of its own: the graphs with tiles are made of the joint graph as it came.
        plain = copied(joint) if tiling.groups else joint
        self.plain = self._cut(plain, (), (1,) * len(tiling.groups))
        """Without tiles."""

    @classmethod
    def of_joint(
        cls, joint: fx.GraphModule, joint_inputs: Any, options: Options, device: str, stock_args: dict[str, Any]
    ) -> Cuts:
        """The cuts of a graph that Inductor hands to a partitioner, which is rewritten in place.

        device: the kind that the step runs on.  stock_args: what Inductor hands over besides the graph and its inputs.
        """
        static_inputs = tuple(stock_args.get("static_lifetime_input_indices") or ())
        given = Joint(joint, stock_args["num_fwd_outputs"], static_inputs)
        # What needs no plan of its own: nothing is tiled yet.
        given = rewrite(given, passes.JOINT, TilePlan(), check_joint if options.verify else None).graphs
        return cls(given, joint_inputs, options, Tiling(given, options, device), stock_args)

    def of(self, shards: Shards) -> Cut:
        """The cut with so many shards of each group of regions.

        A region that cannot be tiled after all stays as it is: the cut says which shards it has.
        """
        if shards not in self._made:
            joint, tiles, made = self.tiling.apply(shards)
            self._made[shards] = self._cut(copied(joint) if joint is self.tiling.joint else joint, tiles, made)
        return self._made[shards]

    def _cut(self, joint: Joint, tiles: tuple[Decision, ...], shards: Shards) -> Cut:
        options, module = self.options, joint.module
        before = snapshot(module) if options.verify else None
        pins = protect(module) | apply_rules(module, options.rules, options.repeatable)
        forward, backward = compat.stock_partition(module, self._joint_inputs, **self._stock_args)
        return Cut(Split(joint, forward, backward), before, pins, tiles, shards)


def copied(joint: Joint) -> Joint:
    """A joint graph that may be rewritten in place."""
    return dataclasses.replace(joint, module=snapshot(joint.module))
