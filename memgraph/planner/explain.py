"""What was decided, as a plan, as refusals, as a timeline: indices turned into names, with their reasons."""

from __future__ import annotations

import difflib
import fnmatch

from memgraph.base import compat
from memgraph.base.sizes import format_size
from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.facts.regions import matched
from memgraph.planner.candidates import Candidate
from memgraph.planner.decisions import Decision, Event, Plan, Refusal, Step, Timeline, Transfer
from memgraph.planner.offload import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner


def make_plan(facts: JointFacts, chosen: Candidate, stock: Candidate, tiles: tuple[Decision, ...] = ()) -> Plan:
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
        decisions=(*tiles, *_decisions(facts, chosen, stock)),
        peak=chosen.peak,
        seconds=chosen.seconds,
        transfers=tuple(_transfers(facts, chosen)),
        settled=tuple(values[schedule.backward.values[slot]].name for slot in sorted(schedule.backward.settled)),
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
    held_somewhere = _written(chosen)
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
            fused = i not in held_somewhere and value.storage not in held_somewhere
            yield Decision(value.name, held.bytes, "recompute", value.module, value.source, seconds, why, fused=fused)


def _written(chosen: Candidate) -> set[int]:
    """Values that get a buffer, in the forward or in the backward, by the sweep."""
    sides = ((chosen.schedule.forward, chosen.forward), (chosen.schedule.backward, chosen.backward))
    return {program.values[slot] for program, swept in sides for slot in swept.births}


def refusals(facts: JointFacts, plan: Plan, rules: tuple[tuple[str, str], ...], repeatable: tuple[str, ...]):
    saved = set(plan.saved)
    for value in facts.values:
        if value.pin and value.pin[0] == "recompute" and value.name in saved and value.kind != "primal":
            reason = value.fixed or "the recomputation of another value starts from it"
            yield Refusal(f"recompute {value.name} ({value.pin[1]})", f"it {reason}" if value.fixed else reason)
    yield from _unknown(repeatable)
    for pattern, action in rules:
        if action.startswith("tile"):  # those are about regions: backend/tiling.py
            continue
        if not any(value.pin and value.pin[1] == f"rule {pattern!r}" for value in facts.values):
            reason = "no module path of this graph matches the pattern"
            if any(matched(value.module, pattern) for value in facts.values):
                reason = "an earlier rule or a checkpoint policy has what it names, or nothing of it may be pinned"
            if action.startswith("offload:"):
                reason = "no value that is saved comes from a module that matches the pattern"
            yield Refusal(f"rule {pattern!r}: {action!r}", reason)


def full_tiers(planner: Planner, chosen: Candidate, missed: bool) -> tuple[tuple[Tier, int], ...]:
    """Tiers whose room was in the way, with the bytes that all values that may go there need.

    missed: the plan is larger than its bound.
    """
    if planner.offloader is None or (chosen.stock and not missed):  # nothing had to leave
        return ()
    return tuple(planner.offloader.without_room(chosen, missed))


def full_refusal(tier: Tier, need: int) -> Refusal:
    """What the report says of a tier whose room was in the way."""
    text = f"the values that may go there need {format_size(need)}, and there is room for {tier.capacity} bytes"
    return Refusal(f"offload to {tier.name}", f"{text}: {tier.why}" if tier.why else text)


def _unknown(repeatable: tuple[str, ...]):
    """Declared operators that there are none of: registered later than this graph, or misspelled."""
    names = compat.operator_names() if repeatable else set()
    for pattern in repeatable:
        if not fnmatch.filter(names, pattern):
            others = sorted(name for name in names if not name.startswith(("aten::", "prims::")))
            near = difflib.get_close_matches(pattern, others, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            yield Refusal(f"option 'repeatable': {pattern!r}", f"no operator of that name is registered{hint}")


def offload_refusals(planner: Planner, chosen: Candidate, tiers: Tiers):
    """What of offload was not done, besides what found no room."""
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

    def add(phase: str, program: Program, which: int, size: int) -> None:
        if size:
            events.append(Event(phase, _storage_name(values, program.values[which], phase, which, program), size))

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
            gone = [(s, -1) for s in freed if s != early]
            for which, sign in changes:
                add(phase, program, which, sign * swept.bytes[which])
            if slot >= program.inputs and (scratch := values[program.values[slot]].scratch):
                inside = f"{values[program.values[slot]].name}@shards"
                events += [Event(phase, inside, scratch), Event(phase, inside, -scratch)]
            for which, sign in gone:
                add(phase, program, which, sign * swept.bytes[which])
    return Timeline(tuple(events))


def _storage_name(values, value: int, phase: str, slot: int, program) -> str:
    name = values[values[value].storage if slot < program.inputs else value].name
    recomputed = phase == "backward" and slot >= program.inputs
    return f"{name}@backward" if recomputed else name
