"""Facts, plan, rewrite, verify: what happens to one joint graph, from Inductor's partitioner hook to two graphs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

from torch import fx

from memgraph import compat
from memgraph.errors import Binding
from memgraph.facts.fusion import price_fusion
from memgraph.facts.joint import JointFacts, read_joint
from memgraph.hardware import Hardware
from memgraph.options import Options
from memgraph.passes.offload import offload
from memgraph.passes.partition import partition
from memgraph.passes.recompute import recompute
from memgraph.pins import apply_rules, protect, send_away
from memgraph.planner.candidate import Candidate
from memgraph.planner.offload import Tiers
from memgraph.planner.plan import Decision, Event, Plan, Refusal, Step, Timeline, Transfer
from memgraph.planner.solve import Planner, carried
from memgraph.tiers import settings
from memgraph.verify import snapshot, verify_partition

# A planned backward came out up to 2 % larger than its sweep, after docs/decisions/0004; planning for less at once is
# cheaper than compiling twice.
SPARE = 0.02
NO_TIERS = Tiers()


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
    """A joint graph after planning.  bound: bytes above the baseline that was asked for, before the margin."""

    plan: Plan
    facts: JointFacts
    chosen: Candidate
    stock: Candidate
    bound: int | None
    refusals: tuple[Refusal, ...]
    num_fwd_outputs: int

    def binding(self) -> tuple[Binding, ...]:
        """What stands at the peak of the chosen plan, by the sweep, largest first."""
        index = self.facts.index()
        live = timeline(self.facts, self.chosen).live_at_peak()
        return tuple(
            Binding(e.name, e.bytes, self.facts.values[index[name]].module, self.facts.values[index[name]].source)
            for e in live
            if (name := e.name.split("@")[0]) in index
        )


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
    before = snapshot(joint) if options.verify else None
    pins = protect(joint) | apply_rules(joint, options.rules)
    num_fwd_outputs = stock_args["num_fwd_outputs"]
    forward, backward = compat.stock_partition(joint, joint_inputs, **stock_args)
    facts = read_joint(
        joint,
        forward,
        backward,
        num_fwd_outputs=num_fwd_outputs,
        hardware=hardware,
        pins=pins,
        granularity=512 if hardware.device == "cuda" else 1,
        retained=options.retain_graph,
    )
    facts = send_away(price_fusion(facts, hardware), options.rules)
    planner = Planner(
        facts,
        copies=options.recompute is None or options.recompute.copies,
        recompute=options.recompute is not None,
        offload=tiers,
    )
    wanted = bound.above_baseline(planner.stock.peak)
    chosen = None
    if not bound.last:
        limit = None if wanted is None else wanted - bound.margin
        unplanned = planner.unplanned()
        known = bound.unplanned if unplanned.stock else None
        if limit is None or (unplanned.peak if known is None else known) <= limit:
            chosen = unplanned
        else:
            chosen = planner.best(int(limit * (1 - SPARE))) or planner.best(limit)
    chosen = chosen or planner.smallest()
    plan = make_plan(facts, chosen, planner.stock)
    if not plan.stock:
        forward, backward = partition(
            joint,
            plan,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=stock_args.get("static_lifetime_input_indices"),
        )
        check = functools.partial(verify_partition, before, num_fwd_outputs=num_fwd_outputs) if before else None
        if check:
            check(forward, backward, pass_name="partition")
        backward = recompute(backward, plan)
        if check:
            check(forward, backward, pass_name="recompute")
        if plan.transfers:
            told = settings(options, tiers, graph=hashlib.sha256(joint.code.encode()).hexdigest()[:16])
            forward, backward = offload(forward, backward, plan, num_fwd_outputs=num_fwd_outputs, settings=told)
            if check:
                check(forward, backward, pass_name="offload")
    elif before is not None:
        verify_partition(before, forward, backward, num_fwd_outputs=num_fwd_outputs, pass_name="Inductor's partition")
    refusals = (*_refusals(facts, plan, options), *_offload_refusals(planner, chosen, tiers))
    return forward, backward, Planned(plan, facts, chosen, planner.stock, wanted, refusals, num_fwd_outputs)


def make_plan(facts: JointFacts, chosen: Candidate, stock: Candidate) -> Plan:
    """Turn indices into names, and the schedule into decisions with their reasons."""
    values, schedule = facts.values, chosen.schedule
    steps = tuple(
        Step(values[i].name, copy, tuple(source for _, source in reads))
        for (i, copy), reads in zip(schedule.backward_steps, schedule.backward_reads, strict=True)
    )
    return Plan(
        saved=tuple(values[i].name for i in schedule.saved),
        backward=steps,
        stock=chosen.stock,
        decisions=tuple(_decisions(facts, chosen, stock)),
        peak=chosen.peak,
        seconds=chosen.seconds,
        transfers=tuple(_transfers(facts, chosen)),
    )


def _transfers(facts: JointFacts, chosen: Candidate):
    values, schedule = facts.values, chosen.schedule

    def step(n: int) -> tuple[str, int]:
        i, copy = schedule.backward_steps[n]
        return values[i].name, copy

    for move in chosen.moves:
        value = values[move.value]
        finish = values[schedule.forward.values[move.finish]].name
        yield Transfer(value.name, value.bytes, move.tier, finish, step(move.load), step(move.use))


def _decisions(facts: JointFacts, chosen: Candidate, stock: Candidate):
    saved, ours = set(chosen.schedule.saved), set(facts.backward)
    moves = {move.value: move for move in chosen.moves}
    stock_again = stock.schedule.recomputed
    times: dict[int, int] = {}
    for i, _ in chosen.schedule.backward_steps:
        times[i] = times.get(i, 0) + 1
    for i, value in enumerate(facts.values):
        held = facts.values[value.storage]
        if i in ours or held.kind == "primal" or value.kind == "primal" or held.bytes == 0:
            continue
        if i in moves:
            why = value.pin[1] if value.pin else "its copies cost less than its bytes or its recomputation"
            yield Decision(value.name, held.bytes, "offload", value.module, value.source, 0.0, why, moves[i].tier)
        elif i in saved:
            why = (
                value.pin[1]
                if value.pin and value.pin[0] != "recompute"
                else (value.fixed if value.fixed else "the backward reads it and it fits")
            )
            yield Decision(value.name, held.bytes, "save", value.module, value.source, 0.0, why)
        elif i in times and value.kind not in ("view", "tuple", "symbol"):
            seconds = value.seconds * times[i]
            if value.pin and value.pin[0] == "recompute":
                why = value.pin[1]
            elif i in stock_again:
                why = "Inductor recomputes it too"
            else:
                why = "dropped for the budget"
            if times[i] > 1:
                why += f", once for each of {times[i]} regions"
            yield Decision(value.name, held.bytes, "recompute", value.module, value.source, seconds, why)


def _refusals(facts: JointFacts, plan: Plan, options: Options):
    saved = set(plan.saved)
    for value in facts.values:
        if value.pin and value.pin[0] == "recompute" and value.name in saved and value.kind != "primal":
            reason = value.fixed or "the recomputation of another value starts from it"
            yield Refusal(f"recompute {value.name} ({value.pin[1]})", f"it {reason}" if value.fixed else reason)
    for pattern, action in options.rules:
        if not any(value.pin and value.pin[1] == f"rule {pattern!r}" for value in facts.values):
            reason = "no module path of this graph matches the pattern"
            if action.startswith("offload:"):
                reason = "no value that is saved comes from a module that matches the pattern"
            yield Refusal(f"rule {pattern!r}: {action!r}", reason)


def _offload_refusals(planner: Planner, chosen: Candidate, tiers: Tiers):
    if planner.offloader is None:
        return
    for tier in tiers.tiers:
        if tier.only_rules:
            reason = "the CPU's own memory is where the values are already: only rules send values there, to no gain"
            yield Refusal(f"offload to {tier.name}", reason)
    for i, reason in planner.offloader.refused(chosen):
        value = planner.facts.values[i]
        yield Refusal(f"offload {value.name} ({value.pin[1]})", reason)


def timeline(facts: JointFacts, candidate: Candidate) -> Timeline:
    """The sweep of a candidate as events; names are those of the joint graph."""
    events: list[Event] = []
    values = facts.values
    sides = (
        ("forward", candidate.schedule.forward, candidate.forward),
        ("backward", candidate.schedule.backward, candidate.backward),
    )
    for phase, program, swept in sides:
        dying: dict[int, list[int]] = {}
        for storage, at in swept.deaths.items():
            dying.setdefault(at, []).append(storage)
        born: dict[int, list[int]] = {}
        for storage, at in swept.births.items():
            born.setdefault(at, []).append(storage)
        for slot in range(len(program.values)):
            freed = dying.get(slot, ())
            # In place where the sweep says so: the bytes that die are given back before the new ones are taken.
            early = swept.in_place.get(slot)
            changes = [(early, -1)] if early is not None else []
            changes += [(s, 1) for s in born.get(slot, ()) if slot >= program.inputs]
            changes += [(s, -1) for s in freed if s != early]
            for which, sign in changes:
                name = _storage_name(values, program.values[which], phase, which, program)
                if swept.bytes[which]:
                    events.append(Event(phase, name, sign * swept.bytes[which]))
    return Timeline(tuple(events))


def _storage_name(values, value: int, phase: str, slot: int, program) -> str:
    name = values[values[value].storage if slot < program.inputs else value].name
    recomputed = phase == "backward" and slot >= program.inputs
    return f"{name}@backward" if recomputed else name


__all__ = ["Bound", "Planned", "carried", "make_plan", "plan_partition", "timeline"]
