"""Facts, plan, rewrite, verify: what happens to one joint graph, from Inductor's partitioner hook to two graphs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

from torch import fx

from memgraph.backend.destinations import settings
from memgraph.backend.options import Options
from memgraph.backend.rules import apply_rules, protect, send_away
from memgraph.backend.tiling import Tiling
from memgraph.base import compat
from memgraph.base.errors import Binding
from memgraph.facts.joint import JointFacts, read_joint
from memgraph.machine.hardware import Hardware
from memgraph.passes.offload import offload
from memgraph.passes.partition import partition
from memgraph.passes.read_operands import read_operands
from memgraph.passes.recompute import recompute
from memgraph.passes.settle import settle
from memgraph.planner.candidates import Candidate
from memgraph.planner.decisions import Decision, Plan, Refusal, Timeline
from memgraph.planner.explain import full_refusal, full_tiers, make_plan, offload_refusals, refusals, timeline
from memgraph.planner.offload import Tiers
from memgraph.planner.prices import price_fusion
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner
from memgraph.planner.tiles import Shards, next_shards, starting_shards
from memgraph.verify.rewrite import snapshot, verify_graph, verify_partition

# A planned backward came out up to 2 % larger than its sweep, after docs/decisions/0004; planning for less at once is
# cheaper than compiling twice.
SPARE = 0.02
NO_TIERS = Tiers()
# Plans with tiles that are made before the best of them is taken.
TILINGS = 6


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a plan may allocate above the baseline.

    bytes: absolute, or None. fraction: of what Inductor's own split allocates, or None. reserve: bytes less than
    that. margin: bytes less than that again, since an earlier plan turned out larger than its sweep. last: take the
    lowest peak that there is, whatever the bound. unplanned: bytes that Inductor's own split allocates, if known.
    """

    bytes: int | None = None
    fraction: float | None = None
    reserve: int = 0
    margin: int = 0
    last: bool = False
    unplanned: int | None = None

    def above_baseline(self, unplanned: int) -> int | None:
        """Bytes above the baseline that the step may reach; None for no bound."""
        if self.fraction is not None:
            return int(self.fraction * unplanned) - self.reserve
        return None if self.bytes is None else self.bytes - self.reserve


@dataclasses.dataclass(frozen=True)
class Planned:
    """A joint graph after planning.  bound: bytes above the baseline that was asked for, before the margin.

    facts, chosen, stock: of the graph as it was planned, tiles in it.  unplanned, unplanned_seconds: a step of the
    graph without tiles, as Inductor splits it.  full: tiers whose room was in the way, with the bytes that were needed.
    """

    plan: Plan
    facts: JointFacts
    chosen: Candidate
    stock: Candidate
    bound: int | None
    refusals: tuple[Refusal, ...]
    num_fwd_outputs: int
    unplanned: Timeline
    unplanned_seconds: float
    seconds: float
    full: tuple[tuple[Tier, int], ...] = ()

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


@dataclasses.dataclass
class _Variant:
    """A joint graph with some regions tiled, and all that is known of it.  before: to verify against."""

    joint: fx.GraphModule
    before: fx.GraphModule | None
    split: tuple[fx.GraphModule, fx.GraphModule]
    facts: JointFacts
    planner: Planner
    tiles: tuple[Decision, ...]
    shards: Shards

    @property
    def seconds(self) -> float:
        """Predicted time of a step as Inductor splits this graph."""
        once = sum(self.facts.values[i].seconds for i in (*self.facts.forward, *self.facts.backward))
        return once + sum(self.planner.stock.schedule.seconds)


class _Partition:
    """One call of `plan_partition`."""

    def __init__(
        self, joint_inputs: Any, options: Options, hardware: Hardware, bound: Bound, tiers: Tiers, stock_args: Any
    ) -> None:
        self.joint_inputs, self.options, self.hardware = joint_inputs, options, hardware
        self.bound, self.tiers, self.stock_args = bound, tiers, stock_args
        self.num_fwd_outputs = stock_args["num_fwd_outputs"]

    def variant(self, joint: fx.GraphModule, tiles: tuple[Decision, ...], shards: Shards) -> _Variant:
        """Facts of a joint graph, which is rewritten in place as Inductor's own partitioner does."""
        before = snapshot(joint) if self.options.verify else None
        pins = protect(joint) | apply_rules(joint, self.options.rules, self.options.repeatable)
        forward, backward = compat.stock_partition(joint, self.joint_inputs, **self.stock_args)
        facts = read_joint(
            joint,
            forward,
            backward,
            num_fwd_outputs=self.num_fwd_outputs,
            hardware=self.hardware,
            pins=pins,
            granularity=512 if self.hardware.device == "cuda" else 1,
            retained=self.options.retain_graph,
            repeatable=self.options.repeatable,
        )
        facts = send_away(price_fusion(facts, self.hardware), self.options.rules)
        planner = Planner(
            facts,
            copies=self.options.recompute is None or self.options.recompute.copies,
            recompute=self.options.recompute is not None,
            offload=self.tiers,
        )
        return _Variant(joint, before, (forward, backward), facts, planner, tiles, shards)

    def fitting(self, variant: _Variant, wanted: int | None) -> Candidate | None:
        """The fastest choice for a variant under the bound; None where there is none, or none is asked for."""
        if self.bound.last:
            return None
        limit = None if wanted is None else wanted - self.bound.margin
        unplanned = variant.planner.unplanned()
        known = self.bound.unplanned if unplanned.stock and not variant.tiles else None
        if limit is None or (unplanned.peak if known is None else known) <= limit:
            return unplanned
        return variant.planner.best(int(limit * (1 - SPARE))) or variant.planner.best(limit)

    def choose(self, tiling: Tiling, plain: _Variant, wanted: int | None) -> tuple[_Variant, Candidate]:
        """The fastest plan that fits, with tiles or without; else the one with the lowest peak."""
        shards: Shards | None = starting_shards(tiling.groups)
        variant = plain if max(shards, default=1) == 1 else self.tiled(tiling, shards)
        tried: list[tuple[_Variant, Candidate, bool]] = []
        for _ in range(TILINGS):
            found = self.fitting(variant, wanted)
            chosen = found or variant.planner.smallest()
            tried.append((variant, chosen, found is not None))
            costs = found is None or found.seconds > 0
            if wanted is None or not costs or not tiling.groups:
                break
            # What fits but costs time could do without: what stands at the peak of the fastest plan is in the way.
            blocked = variant.planner.unplanned() if found else chosen
            standing = tiling.standing(timeline(variant.facts, blocked), variant.shards)
            shards = next_shards(tiling.groups, variant.shards, standing, blocked.peak, wanted - self.bound.margin)
            if shards is None:
                break
            variant = self.tiled(tiling, shards)
        fits = [(v.seconds + c.seconds, c.peak, n) for n, (v, c, ok) in enumerate(tried) if ok]
        n = min(fits)[2] if fits else min((c.peak, n) for n, (_, c, _) in enumerate(tried))[1]
        return tried[n][:2]

    def tiled(self, tiling: Tiling, shards: Shards) -> _Variant:
        joint, tiles, shards = tiling.apply(shards)
        return self.variant(joint if joint is not tiling.joint else snapshot(joint), tiles, shards)

    def realise(self, variant: _Variant, chosen: Candidate) -> tuple[fx.GraphModule, fx.GraphModule, Plan]:
        """Rewrite: the forward and the backward of a choice.  Raises VerifyError where a rewrite is not legal."""
        plan = make_plan(variant.facts, chosen, variant.planner.stock, variant.tiles)
        joint, before, count = variant.joint, variant.before, self.num_fwd_outputs
        told = {"num_fwd_outputs": count, "repeatable": self.options.repeatable}
        check = functools.partial(verify_partition, before, **told) if before else _unchecked
        if plan.stock:
            forward, backward = variant.split
            check(forward, backward, pass_name="Inductor's partition")
            return forward, backward, plan
        forward, backward = partition(
            joint,
            plan,
            num_fwd_outputs=count,
            static_lifetime_input_indices=self.stock_args.get("static_lifetime_input_indices"),
        )
        check(forward, backward, pass_name="partition")
        backward = recompute(backward, plan)
        check(forward, backward, pass_name="recompute")
        backward = settle(backward, plan)
        if plan.transfers:
            told = settings(self.options, self.tiers, graph=hashlib.sha256(joint.code.encode()).hexdigest()[:16])
            forward, backward = offload(forward, backward, plan, num_fwd_outputs=count, settings=told)
            check(forward, backward, pass_name="offload")
        return forward, backward, plan


def _unchecked(*graphs: fx.GraphModule, pass_name: str) -> None:
    """Stands for the verifier where the options switch it off."""


def plan_partition(
    joint: fx.GraphModule,
    joint_inputs: Any,
    options: Options,
    hardware: Hardware,
    bound: Bound,
    tiers: Tiers = NO_TIERS,
    **stock_args: Any,
) -> tuple[fx.GraphModule, fx.GraphModule, Planned]:
    """Split a joint graph under a bound; returns (forward, backward, what was planned).

    joint is rewritten in place, as Inductor's own partitioner does.  Raises VerifyError where a rewrite is not legal.
    """
    if joint.graph.find_nodes(op="call_function", target=compat.invoke_subgraph()):
        before = snapshot(joint)
        read_operands(joint)
        if options.verify:
            verify_graph(before, joint, pass_name="operands")
    work = _Partition(joint_inputs, options, hardware, bound, tiers, stock_args)
    tiling = Tiling(joint, options, hardware.device, stock_args.get("static_lifetime_input_indices"))
    # Each variant is a copy: the graph of the first tiling is made of the joint graph as it came.
    plain = work.variant(snapshot(joint) if tiling.groups else joint, (), (1,) * len(tiling.groups))
    wanted = bound.above_baseline(plain.planner.stock.peak)
    variant, chosen = work.choose(tiling, plain, wanted)
    forward, backward, plan = work.realise(variant, chosen)
    missed = wanted is not None and chosen.peak > wanted - bound.margin
    full = full_tiers(variant.planner, chosen, missed)
    refused = (
        *refusals(variant.facts, plan, options.rules, options.repeatable),
        *(full_refusal(tier, need) for tier, need in full),
        *offload_refusals(variant.planner, chosen, tiers),
        *tiling.refusals,
    )
    planned = Planned(
        plan,
        variant.facts,
        chosen,
        variant.planner.stock,
        wanted,
        refused,
        work.num_fwd_outputs,
        timeline(plain.facts, plain.planner.stock),
        plain.seconds,
        variant.seconds + chosen.seconds,
        full,
    )
    return forward, backward, planned


__all__ = ["Bound", "Planned", "plan_partition"]
