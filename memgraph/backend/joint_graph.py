"""Facts, plan, rewrite, verify: what happens to one joint graph, from Inductor's partitioner hook to two graphs."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from torch import fx

from memgraph import passes
from memgraph.backend.budget import NEAR, Bound
from memgraph.backend.cuts import Cut, Cuts
from memgraph.backend.destinations import settings
from memgraph.backend.options import Options
from memgraph.backend.outlining import outlined, with_layers
from memgraph.backend.planned import Planned
from memgraph.backend.planners import Planners
from memgraph.backend.rewriting import check_split, rewrite
from memgraph.backend.rules import send_away
from memgraph.backend.tiling import Tiling
from memgraph.base import compat
from memgraph.base.errors import PlanError
from memgraph.base.garbage import without_collections
from memgraph.facts.identity import read_identity
from memgraph.facts.joint import JointFacts, read_joint
from memgraph.machine.hardware import Hardware
from memgraph.passes.graphs import Split
from memgraph.planner.candidates import Candidate
from memgraph.planner.course import Course, timeline
from memgraph.planner.decisions import KernelEnd, Plan
from memgraph.planner.explain import full_refusal, full_tiers, make_plan, offload_refusals, refusals
from memgraph.planner.kernel_ends import kernel_ends
from memgraph.planner.leaving import Tiers
from memgraph.planner.outlining import Outlining
from memgraph.planner.prices import price_fusion
from memgraph.planner.replay import replayed, replayed_ends
from memgraph.planner.solve import Planner
from memgraph.planner.tiles import Shards, next_shards, starting_shards
from memgraph.step.variants import Envelope, Offer

# A planned backward came out up to 2 % larger than its sweep, after docs/decisions/0004; planning for less at once is
# cheaper than compiling twice.
SPARE = 0.02
NO_TIERS = Tiers()
# At most so many combinations of shards are planned; the best of their plans is taken. More shards are not tried once
# so many in a row could not have been faster: in 32 searches of eight models none that came later was (decisions/0007).
TILINGS = 6
SLOWER_IN_A_ROW = 2


@dataclasses.dataclass(frozen=True)
class _Variant:
    """A joint graph with some regions tiled, and what is known of it."""

    cut: Cut
    facts: JointFacts
    planner: Planner

    @property
    def seconds(self) -> float:
        """Predicted time of a step as Inductor partitions this graph."""
        return self.planner.candidates.stock_step


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best candidate of a variant: the fastest one that fits, or the one with which the step reaches least."""

    variant: _Variant
    candidate: Candidate
    fits: bool
    beside: int = 0
    """Bytes that graphs like this one hold beside it."""

    @property
    def seconds(self) -> float:
        """Predicted time of a step."""
        return self.variant.seconds + self.candidate.seconds


@dataclasses.dataclass(frozen=True)
class Planning:
    """How one joint graph is planned, for one bound and one set of sizes."""

    cuts: Cuts
    tiling: Tiling
    options: Options
    hardware: Hardware
    bound: Bound
    tiers: Tiers
    dropped: tuple[int, ...] = ()
    """Positions of the forward's outputs that the user drops before the backward begins."""
    known: dict[Shards, Planner] = dataclasses.field(default_factory=dict)
    """Planners of this graph with these sizes, without tiers, that earlier questions have made."""
    planners: Planners = dataclasses.field(default_factory=Planners)
    """The same of graphs that may be equal to this one, such as that of an earlier attempt."""
    given: Plan | None = None
    """The plan that is used as it is; None where one is made."""

    def variant(self, cut: Cut) -> _Variant:
        """What is known of the graph so cut."""
        if cut.shards not in self.known:
            self.known[cut.shards] = self._planner(cut)
        planner = self.known[cut.shards]
        return _Variant(cut, planner.facts, self.planners.sending(planner, self.tiers))

    def thorough(self, variant: _Variant) -> _Variant:
        """The same, with a planner that looks longer."""
        return dataclasses.replace(variant, planner=variant.planner.thorough())

    def _planner(self, cut: Cut) -> Planner:
        options, joint = self.options, cut.split.joint
        facts = read_joint(
            joint.module,
            cut.split.forward,
            cut.split.backward,
            num_fwd_outputs=joint.num_fwd_outputs,
            hardware=self.hardware,
            pins=cut.pins,
            granularity=512 if self.hardware.device == "cuda" else 1,
            retained=options.retain_graph,
            repeatable=options.repeatable,
            dropped=self.dropped,
        )
        if self.given is None:
            facts = with_layers(facts, joint.module, self.bound.outline(options), options.repeatable)
        facts = send_away(price_fusion(facts, self.hardware), options.rules)
        copies = options.recompute is None or options.recompute.copies
        # Without recomputation nothing is planned: a plan that is given needs Inductor's own choice to compare with.
        recompute = options.recompute is not None and self.given is None
        return self.planners.of(facts, copies=copies, recompute=recompute)

    def fitting(self, variant: _Variant, wanted: int | None) -> Candidate | None:
        """The fastest candidate of a variant under the bound; None where none fits, or the lowest peak is wanted."""
        if self.bound.last:
            return None
        limit = None if wanted is None else wanted - self.bound.margin
        if self.bound.others or self.bound.offer is not None:
            found = self.among_others(variant, limit)
            fits = found is not None and (
                limit is None or found.peak + self.bound.beside(found.peak, found.carried) <= limit
            )
            return found if fits else None
        unplanned = variant.planner.unplanned()
        known = self.bound.unplanned if unplanned.stock and not variant.cut.tiled else None
        if limit is None or (unplanned.peak if known is None else known) <= limit:
            return unplanned
        if known is not None:  # Inductor's own choice is too large, whatever the sweep says of it
            limit = min(limit, unplanned.peak - 1)
        return variant.planner.best(int(limit * (1 - SPARE))) or variant.planner.best(limit)

    def among_others(self, variant: _Variant, limit: int | None) -> Candidate | None:
        """The candidate of a graph that is not alone in a step: the one that was offered, else the lightest."""
        planner = variant.planner
        if planner.unplanned().peak <= self.bound.ample:
            return planner.unplanned()
        if self.bound.offer is None:
            return planner.lightest(self.bound.others, self.bound.beside, limit)
        return next((c for c in planner.offered() if (c.peak, c.carried) == self.bound.offer), None)

    def smallest(self, variant: _Variant) -> Candidate:
        """The candidate of a variant with which a step reaches least."""
        if self.bound.others:
            return variant.planner.lightest(self.bound.others, self.bound.beside, 0)
        lowest = variant.planner.smallest()
        if self.bound.last and lowest.stock:  # earlier attempts had it as it stands
            lowest = variant.planner.stock_in_order
        return variant.planner.best(int(lowest.peak * (1 + NEAR))) or lowest if self.bound.near else lowest

    def choose(self, plain: _Variant, wanted: int | None) -> Choice:
        """The fastest plan that fits, with tiles or without, else that which reaches least; or the given plan."""
        if self.given is not None:
            return self.as_given(self.given, plain)
        choices: list[Choice] = []
        slower = 0
        shards: Shards = starting_shards(self.tiling.groups)
        for tried in range(TILINGS):
            untiled = not tried and all(count == 1 for count in shards)
            variant = plain if untiled else self.variant(self.cuts.of(shards))
            fastest = min((choice.seconds for choice in choices if choice.fits), default=None)
            if fastest is not None and self.is_slower(variant, wanted, fastest):
                blocked, beside, slower = variant.planner.unplanned(), 0, slower + 1
            else:
                slower = 0
                choices.append(choice := self.best_of(variant, wanted))
                # Where a candidate fits and costs time, what stands at the peak of the fastest one made it necessary.
                blocked, beside = variant.planner.unplanned() if choice.fits else choice.candidate, choice.beside
                if choice.fits and choice.candidate.seconds <= 0:
                    break
            more = self.more_shards(variant, blocked, beside, wanted) if slower < SLOWER_IN_A_ROW else None
            if more is None:
                break
            shards = more
        fitting = [choice for choice in choices if choice.fits]
        if fitting:
            return self.looked_on(min(fitting, key=lambda choice: (choice.seconds, choice.candidate.peak)), wanted)
        closest = min(choices, key=lambda choice: choice.candidate.peak + choice.beside)
        return self.best_of(self.thorough(closest.variant), wanted)

    def looked_on(self, found: Choice, wanted: int | None) -> Choice:
        """The choice, or a faster one of its variant where it may be far from the best."""
        alone = not self.bound.others and self.bound.offer is None
        if wanted is None or not alone:
            return found
        if not found.variant.planner.may_be_far(found.candidate, wanted - self.bound.margin):
            return found
        longer = self.best_of(self.thorough(found.variant), wanted)
        return longer if longer.fits and longer.seconds < found.seconds else found

    def best_of(self, variant: _Variant, wanted: int | None) -> Choice:
        """The fastest candidate of a variant that fits, or that which reaches least."""
        found = self.fitting(variant, wanted)
        candidate = self.smallest(variant) if found is None else found
        beside = self.bound.beside(candidate.peak, candidate.carried)
        return Choice(variant, candidate, fits=found is not None, beside=beside)

    def is_slower(self, variant: _Variant, wanted: int | None, seconds: float) -> bool:
        """Whether no plan of a variant that fits takes less than `seconds`: then none is looked for."""
        return wanted is not None and variant.planner.none_takes_less(
            seconds - variant.seconds, wanted - self.bound.margin
        )

    def as_given(self, given: Plan, plain: _Variant) -> Choice:
        """The choice that a given plan is.  Raises PlanError where it cannot be made of this graph."""
        shards = self.tiling.shards_of(given.decisions)
        variant = self.variant(self.cuts.of(shards)) if any(count > 1 for count in shards) else plain
        if variant.cut.shards != shards:
            refused = self.tiling.refusals[-1]
            raise PlanError(f"the plan has tiles that this graph cannot have: {refused.what}: {refused.reason}")
        return Choice(variant, replayed(given, variant.planner.candidates, self.tiers), fits=True)

    def more_shards(self, variant: _Variant, blocked: Candidate, beside: int, wanted: int | None) -> Shards | None:
        """The shards to try next; None where there are none.  blocked: what stands at its peak is in the way."""
        tiling = self.tiling
        if wanted is None or not tiling.groups:
            return None
        standing = tiling.standing(timeline(variant.facts, blocked), variant.cut.shards)
        limit = wanted - self.bound.margin - beside
        return next_shards(tiling.groups, variant.cut.shards, standing, blocked.peak, limit)

    def offers(self, variant: _Variant, chosen: Candidate) -> tuple[Offer, ...]:
        """The other plans that the graph could have, for a choice together with other graphs."""
        return tuple(
            Offer(Envelope.of(timeline(variant.facts, c)), variant.seconds + c.seconds, c.peak, c.carried)
            for c in variant.planner.offered()
            if c != chosen
        )

    def outcome(self) -> tuple[Split, Planned]:
        """The two graphs of the best choice, and what was planned.  Raises VerifyError where a rewrite is not legal."""
        plain, wanted, choice = self.chosen()
        while not self.cuts.holds(choice.variant.cut):
            self.known.clear()  # the same shards are other tiles now
            choice = self.choose(plain, wanted)
        self.tiling.assume(choice.variant.cut.shards)
        split, plan, outlining = self.realise(choice, wanted)
        planned = self.planned(choice, plan, plain, wanted)
        refused = (*planned.refusals, *outlining.refusals)
        return split, dataclasses.replace(planned, outlining=outlining, refusals=refused)

    def chosen(self) -> tuple[_Variant, int | None, Choice]:
        """The graph without tiles, the bytes above the baseline that are wanted, and the best choice."""
        plain = self.variant(self.cuts.plain)
        wanted = self.bound.above_baseline(plain.planner.stock.peak)
        return plain, wanted, self.choose(plain, wanted)

    def ends(self, choice: Choice, wanted: int | None, everywhere: bool) -> tuple[KernelEnd, ...]:
        """Where kernels end: wherever no function shall hold more than the bound, or only where they must.

        wanted: the bound's bytes above the baseline.
        """
        if self.given is not None:
            return replayed_ends(self.given)
        if choice.candidate.stock or self.hardware.device != "cpu":
            return ()
        if not everywhere:
            return kernel_ends(choice.variant.facts, choice.candidate)
        limit = 0 if wanted is None or self.bound.last else wanted - self.bound.margin
        return kernel_ends(choice.variant.facts, choice.candidate, limit)

    def realise(self, choice: Choice, wanted: int | None) -> tuple[Split, Plan, Outlining]:
        """The two graphs of a choice, its plan, and which layers became bodies.

        Raises VerifyError where a rewrite is not legal.  wanted: the bytes above the baseline of the bound.
        """
        variant = choice.variant
        plan = make_plan(
            variant.facts,
            choice.candidate,
            variant.planner.stock,
            self.tiling.decisions(variant.cut.shards),
            self.tiers.tiers,
            self.ends(choice, wanted, everywhere=self.bound.kernel_ends),
        )
        check = None if variant.cut.before is None else check_split(variant.cut.before, self.options.repeatable)
        split = variant.cut.split
        if plan.stock and check is not None:
            check(split, split, "Inductor's partition")
        if plan.transfers:

            def graph() -> str:
                return hashlib.sha256(variant.cut.split.joint.module.code.encode()).hexdigest()[:16]

            split = dataclasses.replace(split, settings=settings(self.options, self.tiers, graph))
        split = rewrite(split, passes.SPLIT, plan, check).graphs
        asked, alike = self.bound.outline(self.options), bool(variant.facts.alike)
        split, outlining = outlined(split, asked, self.options.repeatable, check, alike=alike)
        return split, plan, outlining

    def planned(self, choice: Choice, plan: Plan, plain: _Variant, wanted: int | None) -> Planned:
        """What the report needs to know."""
        variant, chosen = choice.variant, choice.candidate
        missed = wanted is not None and chosen.peak > wanted - self.bound.margin
        full = full_tiers(variant.planner, chosen, missed)
        refused = (
            *refusals(variant.facts, plan, self.options.rules, self.options.repeatable),
            *(full_refusal(tier, need) for tier, need in full),
            *offload_refusals(variant.planner, chosen, self.tiers),
            *variant.cut.refusals,
            *self.tiling.refusals,
        )
        return Planned(
            plan=plan,
            facts=variant.facts,
            chosen=chosen,
            stock=variant.planner.stock,
            bound=wanted,
            refusals=refused,
            num_fwd_outputs=variant.cut.split.joint.num_fwd_outputs,
            dropped=self.dropped,
            unplanned=timeline(plain.facts, plain.planner.stock, Course(plain.facts, plain.planner.stock)),
            unplanned_seconds=plain.seconds,
            more_ends=self.ends(choice, wanted, everywhere=True) != plan.kernel_ends,
            seconds=choice.seconds,
            offers=self.offers(variant, chosen) if self.bound.offers and self.given is None else (),
            full=full,
            tiers=self.tiers.tiers,
            planner=variant.planner,
            limit=None if wanted is None else wanted - self.bound.margin,
            untiled=None if plain is variant else plain.facts,
        )


def _dropped(bound: Bound, num_fwd_outputs: int) -> tuple[int, ...]:
    """What the user drops of the forward's outputs; nothing where it is not known which of them the user gets."""
    first = compat.first_users_output(bound.outputs) if bound.dropped else None
    if first is None or first + bound.outputs != num_fwd_outputs:
        return ()
    return tuple(first + position for position in bound.dropped)


@without_collections()
def plan_partition(
    joint: fx.GraphModule,
    joint_inputs: Any,
    options: Options,
    hardware: Hardware,
    bound: Bound,
    tiers: Tiers = NO_TIERS,
    name: str = "this graph",
    planners: Planners | None = None,
    **stock_args: Any,
) -> tuple[fx.GraphModule, fx.GraphModule, Planned]:
    """Split a joint graph under a bound; returns (forward, backward, what was planned).

    joint is rewritten in place, as Inductor's own partitioner does.  name: of the graph, for messages.  planners:
    those of earlier attempts.  stock_args: what Inductor hands to a partitioner besides the graph and its inputs.
    Raises VerifyError where a rewrite is not legal, and PlanError where the options give the plan of another graph.
    """
    identity = read_identity(joint)  # before anything is rewritten
    given = None if options.plan is None else options.plan.of(identity, name).plan
    cuts = Cuts.of_joint(joint, joint_inputs, options, hardware.device, stock_args)
    dropped = _dropped(bound, cuts.joint.num_fwd_outputs)
    shared = Planners() if planners is None else planners
    planning = Planning(cuts, cuts.tiling, options, hardware, bound, tiers, dropped, planners=shared, given=given)
    split, planned = planning.outcome()
    return split.forward, split.backward, dataclasses.replace(planned, identity=identity)
