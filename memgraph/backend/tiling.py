"""Tiles, from the options to the rewritten joint graph: which regions there are, who asks for shards, what was done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from memgraph.backend.options import Options
from memgraph.backend.rules import rule_of
from memgraph.base.sizes import format_size
from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family
from memgraph.facts.tokens.find import find_regions
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.states import MixesTokens
from memgraph.passes.tile import call_names, tile
from memgraph.passes.tiles.body import sizes
from memgraph.planner.decisions import Decision, Refusal, Timeline
from memgraph.planner.tiles import Group, Shards, most_shards
from memgraph.verify.rewrite import snapshot
from memgraph.verify.tiles import TileError, verify_tiles


class Tiling:
    """The regions of one joint graph that may run in shards.  groups: of equal ones, with who asks for how many."""

    def __init__(
        self, joint: fx.GraphModule, options: Options, device: str, static_inputs: Sequence[int] | None = None
    ) -> None:
        self.joint, self.options = joint, options
        self.regions: tuple[TokenRegion, ...] = ()
        refused: tuple[RefusedRegion, ...] = ()
        self.refusals: list[Refusal] = []
        self.tried: set[str] = set()  # by the verifier
        if options.tile is not None or any(action.startswith("tile") for _, action in options.rules):
            placeholders = joint.graph.find_nodes(op="placeholder")
            self.regions, refused = find_regions(joint, {placeholders[i].name for i in static_inputs or ()})
        self.groups = self._groups(device)
        self._refuse(refused)

    def apply(self, shards: Shards) -> tuple[fx.GraphModule, tuple[Decision, ...], Shards]:
        """The joint graph with so many shards of each group, the decisions that it stands for, the shards that it has.

        The joint graph itself where nothing is tiled.  A region that cannot be tiled after all is left as it is and
        refused from then on.
        """
        while True:
            tiles = [
                (self.regions[i], count, group)
                for group, count in zip(self.groups, shards, strict=True)
                for i in group.regions
                if count > 1
            ]
            if not tiles:
                return self.joint, (), shards
            tiled = snapshot(self.joint)
            try:
                made = tile(tiled, [(region, count) for region, count, _ in tiles])
                verify_tiles(self.joint, made, [(region, count) for region, count, _ in tiles], self.tried)
            except (MixesTokens, TileError) as problem:
                shards = self._drop(problem, shards)
                continue
            return made, tuple(_decision(region, count, group) for region, count, group in tiles), shards

    def standing(self, timeline: Timeline, shards: Shards) -> Mapping[int, int]:
        """By group, the bytes of its values among those that make a timeline's peak."""
        owner = {}
        for n, group in enumerate(self.groups):
            for i in group.regions:
                region = self.regions[i]
                names = call_names(region) if shards[n] > 1 else region.nodes
                owner |= dict.fromkeys(names, n)
        found: dict[int, int] = {}
        for event in timeline.live_at_peak():
            n = owner.get(event.name.split("@")[0])
            if n is not None:
                found[n] = found.get(n, 0) + event.bytes
        return found

    def _groups(self, device: str) -> list[Group]:
        alike: dict[tuple, list[int]] = {}
        for i, region in enumerate(self.regions):
            fixed, why = self._asked(region)
            if fixed == 1:
                continue
            key = (region.kind, region.tokens, region.row_bytes, len(region.forward), len(region.backward), fixed, why)
            alike.setdefault(key, []).append(i)
        groups = []
        for (kind, tokens, *_, fixed, why), members in alike.items():
            most = most_shards(tokens, device)
            fixed = min(fixed, tokens)
            groups.append(Group(kind, self.regions[members[0]].module, tokens, tuple(members), most, fixed, why))
        return groups

    def _asked(self, region: TokenRegion) -> tuple[int, str]:
        """How many shards a rule or an option asks for (0: the planner chooses, 1: none), and who asks."""
        rule = rule_of(region.module, tuple(rule for rule in self.options.rules if rule[1].startswith("tile")))
        if rule is not None:
            count = rule[1].partition(":")[2]
            return (int(count) if count else 0), f"rule {rule[0]!r}"
        asked = getattr(self.options.tile, region.kind) if self.options.tile is not None else False
        if asked is False:
            return 1, ""
        return (0, "") if asked == "auto" else (asked, f"option 'tile': {{{region.kind!r}: {asked}}}")

    def _refuse(self, refused: Sequence[RefusedRegion]) -> None:
        for module, reason in dict.fromkeys((problem.module, problem.reason) for problem in refused):
            self.refusals.append(Refusal(f"tile {module or 'a region'}", reason))
        if self.options.tile is not None and not self.regions:
            reason = "no stretch of this graph has wide values that are a token's own"
            if any(isinstance(node.meta.get("val"), torch.SymInt) for node in self.joint.graph.nodes):
                reason = (
                    "the number of tokens is symbolic, and shards are of a known size: torch.compile(dynamic=False)"
                )
            self.refusals.append(Refusal("tile", reason))
        self._say_what_is_returned()
        paths = [region.module for region in self.regions]
        for pattern, action in self.options.rules:
            if action.startswith("tile") and not any(rule_of(path, ((pattern, action),)) for path in paths):
                self.refusals.append(Refusal(f"rule {pattern!r}: {action!r}", "no region that can be tiled matches it"))

    def _say_what_is_returned(self) -> None:
        """What the function returns whole of a loss's wide values: no number of shards makes that smaller."""
        returned = set(self.joint.graph.output_node().all_input_nodes)
        nodes = {node.name: node for node in self.joint.graph.nodes}
        for region in self.regions:
            for name in [n for n in region.outputs if region.kind == "loss" and n in set(region.forward)]:
                size = logical_bytes(nodes[name].meta.get("val"))
                if size >= region.row_bytes * region.tokens // 4 and _seen_as(nodes[name]) & returned:
                    what = f"the logits of tile {region.module or 'a loss'}"
                    told = f"the function returns them beside its loss: {format_size(size)} that stay whole, and as "
                    told += "much again for their gradient; the option tile: {'logits': 'drop'} gives them up"
                    self.refusals.append(Refusal(what, told))

    def _drop(self, problem: MixesTokens | TileError, shards: Shards) -> Shards:
        """The shards without the group of the region that failed; its refusal is written down."""
        if isinstance(problem, TileError):
            region, reason = problem.region, str(problem)
        else:
            region = next(r for r in self.regions if problem.node.name in r.nodes)
            reason = str(problem)
        self.refusals.append(Refusal(f"tile {region.module or 'a region'}", reason))
        n = next(n for n, group in enumerate(self.groups) if any(self.regions[i] is region for i in group.regions))
        self.groups[n] = dataclasses.replace(self.groups[n], fixed=1)
        return tuple(1 if i == n else count for i, count in enumerate(shards))


def _decision(region: TokenRegion, shards: int, group: Group) -> Decision:
    why = group.why or "its values make the peak"
    size = region.row_bytes * region.tokens
    return Decision(
        region.outputs[0], size, "tile", region.module, "", 0.0, why, shards=len(sizes(region.tokens, shards))
    )


def _seen_as(node: fx.Node) -> set[fx.Node]:
    """A value and all views of it."""
    found, pending = {node}, [node]
    while pending:
        for user in pending.pop().users:
            if user.op == "call_function" and family(user.target) == "view" and user not in found:
                found.add(user)
                pending.append(user)
    return found
