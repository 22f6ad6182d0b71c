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
from memgraph.backend.rules import apply_rules, offload_tags, protect
from memgraph.backend.tiling import Tiling
from memgraph.base import compat
from memgraph.facts.actions import Pin
from memgraph.passes.graphs import Joint, Split, TilePlan
from memgraph.planner.decisions import Refusal
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
    shards: Shards = ()
    """By group of regions; 1 for one that is whole."""
    refusals: tuple[Refusal, ...] = ()
    """Tags of the user's checkpoint policy that cannot be followed."""

    @property
    def tiled(self) -> bool:
        """Whether any region runs in shards."""
        return any(count > 1 for count in self.shards)


class Cuts:
    """The cuts of one joint graph."""

    def __init__(
        self,
        joint: Joint,
        joint_inputs: Any,
        options: Options,
        tiling: Tiling,
        stock_args: Mapping[str, Any],
        verify_tiles: bool = True,
    ) -> None:
        """verify_tiles: whether each tile is verified when it is made; else `holds` does that."""
        self.joint, self.options, self.tiling, self.verify_tiles = joint, options, tiling, verify_tiles
        self._joint_inputs, self._stock_args = joint_inputs, stock_args
        self._made: dict[Shards, Cut] = {}
        self._verified: set[Shards] = set()
        # Each cut has a copy of its own: the graphs with tiles are made of the joint graph as it came.
        whole = (1,) * len(tiling.groups)
        self.plain = self._cut(copied(joint), whole, joint) if tiling.groups else self._cut(joint, whole)
        """Without tiles."""

    @classmethod
    def of_joint(
        cls,
        joint: fx.GraphModule,
        joint_inputs: Any,
        options: Options,
        device: str,
        stock_args: Mapping[str, Any],
        verify_tiles: bool = True,
    ) -> Cuts:
        """The cuts of a graph that Inductor hands to a partitioner, which is rewritten in place.

        device: the kind that the step runs on.  stock_args: what Inductor hands over besides the graph and its inputs.
        verify_tiles: as in the constructor.
        """
        static_inputs = tuple(stock_args.get("static_lifetime_input_indices") or ())
        given = Joint(joint, stock_args["num_fwd_outputs"], static_inputs)
        # The passes of this stage that need no plan: nothing is tiled yet.
        given = rewrite(given, passes.JOINT, TilePlan(), check_joint if options.verify else None).graphs
        return cls(given, joint_inputs, options, Tiling(given, options, device), stock_args, verify_tiles)

    def of(self, shards: Shards) -> Cut:
        """The cut with so many shards of each group of regions.

        A region that cannot be tiled after all stays as it is: the cut says which shards it has.
        """
        if shards not in self._made:
            joint, made = self.tiling.apply(shards, verify=self.verify_tiles)
            as_it_came = joint is self.tiling.joint
            self._made[shards] = self._cut(copied(joint), made, joint) if as_it_came else self._cut(joint, made)
        return self._made[shards]

    def holds(self, cut: Cut) -> bool:
        """Whether the tiles of a cut do what their regions do. If not, they are refused from then on."""
        if self.verify_tiles or not cut.tiled or cut.before is None or cut.shards in self._verified:
            return True
        if self.tiling.verified(dataclasses.replace(cut.split.joint, module=cut.before), cut.shards):
            self._verified.add(cut.shards)
            return True
        self._made = {}
        return False

    def _cut(self, joint: Joint, shards: Shards, original: Joint | None = None) -> Cut:
        """Cut a joint graph, which is rewritten.  original: what it was copied from, which nothing rewrites."""
        options, module = self.options, joint.module
        before = None
        if options.verify:
            before = snapshot(module) if original is None else original.module
        tagged, refused = offload_tags(module, options.offload, self.tiling.device)
        pins = protect(module) | apply_rules(module, options.rules, options.repeatable) | tagged
        forward, backward = compat.stock_partition(module, self._joint_inputs, **self._stock_args)
        return Cut(Split(joint, forward, backward), before, pins, shards, refused)


def copied(joint: Joint) -> Joint:
    """A joint graph that may be rewritten in place."""
    return dataclasses.replace(joint, module=snapshot(joint.module))
