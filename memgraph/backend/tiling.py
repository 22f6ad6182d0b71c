"""Tiles, from the options to the rewritten joint graph: which regions there are, who asks for shards, what was done."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from memgraph import passes
from memgraph.backend.options import Options
from memgraph.backend.rewriting import check_tiles, rewrite
from memgraph.backend.rules import first_match
from memgraph.backend.table_gradients import TableGradients
from memgraph.backend.tile_lengths import Lengths, with_all_keys
from memgraph.base import compat
from memgraph.base.errors import PlanError
from memgraph.base.sizes import format_size
from memgraph.facts.actions import Origin, Tile, TileOption
from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family
from memgraph.facts.tokens.attention import find_attention
from memgraph.facts.tokens.find import find_regions
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.scores import find_scores
from memgraph.facts.tokens.states import MixesTokens
from memgraph.passes.graphs import Joint, Tiled, TilePlan
from memgraph.passes.tile import call_names
from memgraph.passes.tiles.body import Size, sizes
from memgraph.planner.decisions import Decision, Refusal, Timeline
from memgraph.planner.tiles import (
    Group,
    Shards,
    fastest_shards,
    keys_at_any_length,
    keys_of_shards,
    least_rows,
    most_shards,
)
from memgraph.verify.tiles import TileError


@dataclasses.dataclass(frozen=True)
class Request:
    """Who asks for shards of a region, and for how many."""

    shards: int | None
    """None: the planner chooses."""

    origin: Origin | None
    """None: the option `tile` is on, and says no more of regions of this kind."""


class Tiling:
    """The regions of one joint graph that may run in shards."""

    def __init__(self, joint: Joint, options: Options, device: str) -> None:
        self.joint, self.options = joint, options
        self.device = device
        self.rules = tuple(rule for rule in options.rules if isinstance(rule.action, Tile))
        self.regions: tuple[TokenRegion, ...] = ()
        refused: tuple[RefusedRegion, ...] = ()
        self.refusals: list[Refusal] = []
        self.tried: set[str] = set()  # by the verifier
        self.tables = TableGradients(joint, verify=options.verify, wanted=self._may_ask("attention"))
        self.lengths = Lengths(self.tables.all.module)
        if options.tile is not None or self.rules:
            self.regions, refused = self._found()
        self.groups = self._groups()  # of equal regions, with who asks for how many shards
        self._refuse(refused)

    def counted(self) -> Tiling:
        """The same regions, with their tokens at the sizes in force (`compat.reading_with`)."""
        if not self.regions or not self.lengths.symbols:
            return self
        found = copy.copy(self)
        found.regions = tuple(self.lengths.counted(self.regions))
        # What is refused from now on is so for all sizes: the lists are shared.
        counted = zip(found._groups(), self.groups, strict=True)
        self.groups[:] = [
            new if old.fixed is None else dataclasses.replace(new, fixed=old.fixed) for new, old in counted
        ]
        return found

    def _found(self) -> tuple[tuple[TokenRegion, ...], tuple[RefusedRegion, ...]]:
        """The regions, and what was refused. Symbolic tokens are counted with the sizes of the launch."""
        placeholders = self.joint.module.graph.find_nodes(op="placeholder")
        weights = {placeholders[i].name for i in self.joint.static_inputs}
        module = self.lengths.plain()
        regions, refused = find_regions(module, weights)
        if not self._may_ask("mlp", "loss"):
            refused = ()
        if self._may_ask("attention"):
            attention, kept = find_attention(module, weights, self.device)
            scores, mixed = find_scores(module, weights, {name for region in regions for name in region.outputs})
            regions, refused = (*regions, *attention, *scores), (*refused, *kept, *mixed)
        found = self.lengths.for_all_sizes(regions)
        lost = [old for old, new in zip(regions, found, strict=True) if old.reach is not None and new.reach is None]
        reason = (
            "its shards are given all keys: which of them its queries read is not proven for all sizes of its symbols"
        )
        told = (RefusedRegion(region.module, region.forward[0], reason) for region in lost)
        return tuple(self.lengths.counted(found)), (*refused, *told)

    def _may_ask(self, *kinds: str) -> bool:
        """Whether the options may ask for shards of regions of one of these kinds."""
        tile = self.options.tile
        return bool(self.rules) or tile is not None and any(getattr(tile, kind) is not False for kind in kinds)

    def apply(self, shards: Shards, *, verify: bool = True) -> tuple[Joint, Shards]:
        """The joint graph with so many shards of each group, and the shards that it has.

        The joint graph itself where nothing is tiled.  A region that cannot be tiled after all stays as it is and is
        refused from then on.  verify: whether the tiles are run on small data; else `verified` does that later.
        """
        while True:
            plan = self._plan(shards)
            if not plan.tiles:
                return self.joint, shards
            before, check = self._before(plan), check_tiles(plan, self.tried) if verify else None
            try:
                made = rewrite(before, passes.JOINT, plan, check).graphs
            except (MixesTokens, TileError) as problem:
                shards = self._drop(problem, shards)
                continue
            return made, shards

    def decisions(self, shards: Shards) -> tuple[Decision, ...]:
        """What is decided about each region of a graph that has so many shards of each group."""
        return tuple(self._decision(region, count, group) for region, count, group in self._tiles(shards))

    def shards_of(self, decisions: Sequence[Decision]) -> Shards:
        """The shards of each group by decisions that were made for this graph.

        Raises PlanError where they are for other regions than it has.
        """
        wanted = {d.name: d.action.shards or 1 for d in decisions if isinstance(d.action, Tile)}
        found = []
        for group in self.groups:
            counts = {wanted.pop(self.regions[i].outputs[0], 1) for i in group.regions}
            if len(counts) > 1:
                raise PlanError(
                    f"the plan has tiles in some of the regions like {group.module}, and not in all of them"
                )
            found.append(counts.pop())
            if reason := self.lengths.too_few(self.regions[group.regions[0]], found[-1]):
                raise PlanError(f"the plan runs {group.module or 'a region'} in {found[-1]} shards: {reason}")
        if wanted:
            module = next(d.module for d in decisions if d.name in wanted)
            raise PlanError(f"the plan runs {module or 'a region'} in shards, and this graph has no such region")
        return tuple(found)

    def _tiles(self, shards: Shards) -> list[tuple[TokenRegion, int, Group]]:
        """The regions that run in shards, with how many, and their groups."""
        groups = zip(self.groups, shards, strict=True)
        return [(self.regions[i], count, group) for group, count in groups for i in group.regions if count > 1]

    def _plan(self, shards: Shards) -> TilePlan:
        tiles = (Tiled(region, count, self._keys(region, count)) for region, count, _ in self._tiles(shards))
        assumed = ((name, least) for name, (_, least) in self._assumed(shards).items())
        return TilePlan(tuple(tiles), tuple(assumed))

    def _before(self, plan: TilePlan) -> Joint:
        """The joint graph that a plan's regions are tiled in."""
        return self.tables.of(tiled.region for tiled in plan.tiles)

    def assume(self, shards: Shards) -> None:
        """Have Dynamo compile another graph for sequences that are too short for the shards of this one."""
        for size, least in self._assumed(shards).values():
            compat.assume_at_least(size, least)

    def _assumed(self, shards: Shards) -> dict[str, tuple[torch.SymInt, int]]:
        return self.lengths.assumed((region, count) for region, count, _ in self._tiles(shards))

    def _keys(self, region: TokenRegion, shards: int) -> tuple[Size, ...]:
        """How many keys each shard of a region is given; empty where each is given all."""
        if region.reach is None:
            return ()
        rows, tokens = sizes(self.lengths.of(region), shards, region.multiple), self.lengths.of(region)
        told = region.reach.before, region.reach.after, region.multiple
        return keys_of_shards(rows, *told) if isinstance(tokens, int) else keys_at_any_length(rows, *told)

    def verified(self, made: Joint, shards: Shards) -> bool:
        """Whether the tiles of a graph that `apply` has made without verification do what their regions do.

        A region whose tile does not is refused from then on.
        """
        plan = self._plan(shards)
        try:
            check_tiles(plan, self.tried)(self._before(plan), made, "tile")
        except TileError as problem:
            self._drop(problem, shards)
            return False
        return True

    def standing(self, timeline: Timeline, shards: Shards) -> Mapping[int, int]:
        """By group, the bytes of its values among those that make a timeline's peak."""
        owner: dict[str, int] = {}
        for n, group in enumerate(self.groups):
            for i in group.regions:
                region = self.regions[i]
                names = call_names(region) if shards[n] > 1 else region.nodes
                owner |= dict.fromkeys(names, n)
        found: dict[int, int] = {}
        for event in timeline.live_at_peak():
            if event.value in owner:
                n = owner[event.value]
                found[n] = found.get(n, 0) + event.bytes
        return found

    def _groups(self) -> list[Group]:
        alike: dict[tuple, list[int]] = {}
        for i, region in enumerate(self.regions):
            request = self._request(region)
            if request is not None:
                # Regions that have as many tokens at one size of the symbols alone are no equal ones.
                nodes = len(region.forward), len(region.backward)
                size = (str(self.lengths.of(region)), region.row_bytes, *nodes, region.reach)
                alike.setdefault((region.kind, size, request), []).append(i)
        groups = []
        for (kind, _, request), members in alike.items():
            tokens = self.regions[members[0]].tokens
            allowed = self.lengths.most_shards(self.regions[members[0]])
            groups.append(
                Group(
                    kind,
                    self.regions[members[0]].module,
                    tokens,
                    tuple(members),
                    most=(most := min(allowed, most_shards(tokens, self.device))),
                    least=min(most, self._least(self.regions[members[0]])),
                    fixed=None if request.shards is None else min(request.shards, allowed),
                    origin=request.origin,
                )
            )
        return groups

    def _least(self, region: TokenRegion) -> int:
        """The fewest shards that the planner chooses: attention whose queries read few keys is faster in shards."""
        reach = region.reach
        return 1 if reach is None else fastest_shards(region.tokens, reach.before, reach.after, self.device)

    def _request(self, region: TokenRegion) -> Request | None:
        """What the first rule that matches the region asks for, else the option; None where neither wants shards."""
        match = first_match(region.module, self.rules)
        if match is not None and isinstance(match.rule.action, Tile):
            return Request(match.rule.action.shards, match.rule)
        asked = getattr(self.options.tile, region.kind) if self.options.tile is not None else False
        if asked is False:
            return None
        return Request(None, None) if asked == "auto" else Request(asked, TileOption(region.kind, asked))

    def _refuse(self, refused: Sequence[RefusedRegion]) -> None:
        for module, reason in dict.fromkeys((problem.module, problem.reason) for problem in refused):
            self.refusals.append(Refusal(f"tile {module or 'a region'}", reason))
        if self.options.tile is not None and not self.regions:
            self.refusals.append(Refusal("tile", "no stretch of this graph has wide values that are a token's own"))
        self._refuse_few_queries()
        self._refuse_returned_logits()
        for rule in self.rules:
            if not any(first_match(region.module, (rule,)) for region in self.regions):
                self.refusals.append(Refusal(rule.spelling, "no region that can be tiled matches it"))

    def _refuse_few_queries(self) -> None:
        """Say which masks stay whole, or in a few shards, because there are no more queries to take apart."""
        for group in (group for group in self.groups if group.kind == "attention"):
            what, least = f"tile {group.module or 'attention'}", least_rows(self.device)
            region = self.regions[group.regions[0]]
            request, block = self._request(region), region.multiple
            asked = request is not None and request.shards
            if reason := self.lengths.too_few(region, asked or most_shards(group.tokens, self.device)):
                self.refusals.append(Refusal(what, reason))
            elif group.tokens <= block and block > 1:
                reason = f"each shard has whole blocks of {block} queries, and all {group.tokens} are one block"
                self.refusals.append(Refusal(what, reason))
            elif group.fixed is None and group.most < 2:
                reason = f"{group.tokens} queries are too few: a shard that the planner chooses has {least} at least"
                self.refusals.append(Refusal(what, reason))

    def _refuse_returned_logits(self) -> None:
        """Say which wide values of a loss the function returns: no number of shards makes those smaller."""
        returned = set(self.joint.module.graph.output_node().all_input_nodes)
        nodes = {node.name: node for node in self.joint.module.graph.nodes}
        for region in self.regions:
            for name in [n for n in region.outputs if region.kind == "loss" and n in set(region.forward)]:
                size = logical_bytes(nodes[name].meta.get("val"))
                if size >= region.row_bytes * region.tokens // 4 and _views(nodes[name]) & returned:
                    what = f"the logits of tile {region.module or 'a loss'}"
                    told = f"the function returns them beside its loss: {format_size(size)} that stay whole, and as "
                    told += "much again for their gradient; the option tile: {'logits': 'drop'} gives them up"
                    self.refusals.append(Refusal(what, told))

    def _decision(self, region: TokenRegion, shards: int, group: Group) -> Decision:
        action = Tile(len(sizes(self.lengths.of(region), shards, region.multiple)))
        why = str(group.origin) if group.origin else "its values make the peak"
        if not group.origin and 1 < shards == group.least:
            why = "queries do not read all keys: it is faster so"
        if given := set(map(compat.size_hint, self._keys(region, shards))):
            why += f"; each shard is given {' or '.join(f'{n:,}' for n in sorted(given))} of {region.tokens:,} keys"
        return Decision(region.outputs[0], region.row_bytes * region.tokens, action, region.module, why=why)

    def _drop(self, problem: MixesTokens | TileError, shards: Shards) -> Shards:
        """The shards to try after a region has failed.

        The refusal is noted. The group stays untiled, or is tried once more with all keys where each shard had a part.
        """
        if isinstance(problem, TileError):
            region, reason = problem.region, str(problem)
        else:
            # What makes a mask may belong to several regions: the one that failed is in shards.
            tiled = (region for region, *_ in self._tiles(shards))
            region = next(region for region in tiled if problem.node.name in region.nodes)
            reason = str(problem)
        n = next(n for n, group in enumerate(self.groups) if any(self.regions[i] is region for i in group.regions))
        what = f"tile {region.module or 'a region'}"
        if region.reach is not None:
            self.refusals.append(Refusal(f"the keys of {what}", f"each shard is given all of them: {reason}"))
            members = set(self.groups[n].regions)
            self.regions = tuple(with_all_keys(r) if i in members else r for i, r in enumerate(self.regions))
            self.groups[n] = dataclasses.replace(self.groups[n], least=1)
            return shards
        self.refusals.append(Refusal(what, reason))
        self.groups[n] = dataclasses.replace(self.groups[n], fixed=1)
        return tuple(1 if i == n else count for i, count in enumerate(shards))


def _views(node: fx.Node) -> set[fx.Node]:
    """A value and all views of it."""
    found, pending = {node}, [node]
    while pending:
        for user in pending.pop().users:
            if user.op == "call_function" and family(user.target) == "view" and user not in found:
                found.add(user)
                pending.append(user)
    return found
