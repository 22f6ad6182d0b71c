"""A candidate as a plan and as refusals: names for indices, and the reasons."""

from __future__ import annotations

import collections
import difflib
import fnmatch
import functools
from collections.abc import Iterator, Sequence

from memgraph.base import compat
from memgraph.base.sizes import format_size
from memgraph.facts.actions import Action, Offload, Recompute, Rule, Save, Tile
from memgraph.facts.joint import JointFacts
from memgraph.facts.regions import matched
from memgraph.facts.values import Value
from memgraph.planner.candidates import Candidate
from memgraph.planner.decisions import (
    Decision,
    KernelEnd,
    Plan,
    Refusal,
    Step,
    Transfer,
    node_name,
)
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.solve import Planner

# --- the plan ---------------------------------------------------------------------------------------------


def make_plan(
    facts: JointFacts,
    chosen: Candidate,
    stock: Candidate,
    tiles: tuple[Decision, ...] = (),
    tiers: Sequence[Tier] = (),
    ends: tuple[KernelEnd, ...] = (),
) -> Plan:
    """The plan of a candidate.

    stock: Inductor's own choice, to compare with.  tiles: decisions of tiled regions.  tiers: where values may go.
    ends: where kernels end.
    """
    values, schedule = facts.values, chosen.schedule
    steps = tuple(
        Step(values[i].name, copy, tuple(source for _, source in reads))
        for (i, copy), reads in zip(schedule.backward_steps, schedule.backward_reads, strict=True)
    )
    return Plan(
        saved=tuple(values[i].name for i in schedule.saved),
        backward=steps,
        stock=chosen.stock,
        decisions=(*tiles, *_decisions(facts, chosen, stock, tiers)),
        peak=chosen.peak,
        seconds=chosen.seconds,
        transfers=tuple(_transfers(facts, chosen)),
        settled=tuple(node_name(values[i].name, copy) for i, copy in schedule.settled()),
        forward=tuple(values[i].name for i in schedule.forward.values[schedule.forward.inputs :]),
        kernel_ends=ends,
    )


def _transfers(facts: JointFacts, chosen: Candidate) -> Iterator[Transfer]:
    values, schedule = facts.values, chosen.schedule

    def step(n: int) -> tuple[str, int]:
        i, copy = schedule.backward_steps[n]
        return values[i].name, copy

    for move in chosen.moves:
        value = values[move.value]
        finish = values[schedule.forward.values[move.finish]].name
        yield Transfer(value.name, value.bytes, move.tier, finish, step(move.load), step(move.use))


def _decisions(facts: JointFacts, chosen: Candidate, stock: Candidate, tiers: Sequence[Tier]) -> Iterator[Decision]:
    """One for each forward value with bytes of its own that the backward reads, in the order of the graph."""
    saved, backward = set(chosen.schedule.saved), set(facts.backward)
    moves = {move.value: move for move in chosen.moves}
    allocated = _allocated(chosen)
    times = collections.Counter(i for i, _ in chosen.schedule.backward_steps)
    for i, value in enumerate(facts.values):
        owner = facts.values[value.storage]
        if i in backward or owner.kind == "primal" or value.kind == "primal" or owner.bytes == 0:
            continue
        decide = functools.partial(Decision, value.name, owner.bytes, module=value.module, source=value.source)
        if i in moves:
            away = Offload(moves[i].tier)
            yield decide(away, why=_why_offloaded(value), alternatives=_others(value, away, tiers))
        elif i in saved:
            yield decide(Save(), why=_why_saved(value), alternatives=_others(value, Save(), tiers))
        elif times[i] and value.kind not in ("view", "tuple", "symbol"):
            why = _why_recomputed(value, i in stock.schedule.recomputed, times[i])
            fused = i not in allocated and value.storage not in allocated
            seconds, others = value.seconds * times[i], _others(value, Recompute(), tiers)
            yield decide(Recompute(), why=why, seconds=seconds, fused=fused, alternatives=others)


def _others(value: Value, taken: Action, tiers: Sequence[Tier]) -> tuple[tuple[str, float], ...]:
    """What else could have been done with a value, and the seconds of each by itself."""
    found: list[tuple[Action, float]] = [(Save(), value.hold)]
    if value.fixed is None:
        found.append((Recompute(), value.seconds))
    if value.movable:
        found += [(Offload(tier.name), value.bytes / tier.out + value.bytes / tier.back) for tier in tiers]
    return tuple((str(action), round(seconds, 9)) for action, seconds in found if action != taken)


def _why_offloaded(value: Value) -> str:
    return str(value.pin.origin) if value.pin else "its copies cost less than its bytes or its recomputation"


def _why_saved(value: Value) -> str:
    if value.pin is not None and not value.pinned(Recompute):
        return str(value.pin.origin)
    return value.fixed.text if value.fixed else "the backward reads it and it fits"


def _why_recomputed(value: Value, stock: bool, times: int) -> str:
    """stock: Inductor recomputes it too.  times: how often the backward computes it."""
    if value.pin is not None and value.pinned(Recompute):
        why = str(value.pin.origin)
    else:
        why = "Inductor recomputes it too" if stock else "dropped for the budget"
    return f"{why}, once for each of {times} regions" if times > 1 else why


def _allocated(chosen: Candidate) -> set[int]:
    """Values that get a buffer, in the forward or in the backward, by the sweep."""
    sides = ((chosen.schedule.forward, chosen.forward), (chosen.schedule.backward, chosen.backward))
    return {program.values[slot] for program, swept in sides for slot in swept.births}


# --- refusals ---------------------------------------------------------------------------------------------


def refusals(facts: JointFacts, plan: Plan, rules: tuple[Rule, ...], repeatable: tuple[str, ...]) -> Iterator[Refusal]:
    """Recomputation that was asked for and not done, declarations of no operator, and rules that pin nothing.

    Rules about tiles speak of regions and not of values: backend/tiling.py refuses those.
    """
    saved = set(plan.saved)
    for value in facts.values:
        if value.pin is not None and value.pinned(Recompute) and value.name in saved and value.kind != "primal":
            reason = f"it {value.fixed}" if value.fixed else "the recomputation of another value starts from it"
            yield Refusal(f"recompute {value.name} ({value.pin.origin})", reason)
    yield from _unknown(repeatable)
    pinning = {value.pin.origin for value in facts.values if value.pin is not None}
    for rule in rules:
        if rule not in pinning and not isinstance(rule.action, Tile):
            yield Refusal(rule.spelling, _why_no_pin(facts, rule))


def _why_no_pin(facts: JointFacts, rule: Rule) -> str:
    if isinstance(rule.action, Offload):
        return "no value that is saved comes from a module that matches the pattern"
    if any(matched(value.module, rule.pattern) for value in facts.values):
        return "an earlier rule or a checkpoint policy has what it names, or nothing of it may be pinned"
    return "no module path of this graph matches the pattern"


def full_tiers(planner: Planner, chosen: Candidate, missed: bool) -> tuple[tuple[Tier, int], ...]:
    """Tiers whose capacity has kept values on the device, with the bytes that all values that may go there need.

    missed: whether the plan is larger than its bound.
    """
    if planner.offloader is None or (chosen.stock and not missed):  # nothing had to leave
        return ()
    return tuple(planner.offloader.without_room(chosen, missed))


def full_refusal(tier: Tier, need: int) -> Refusal:
    """What the report says of a tier that was too small.  need: as of `full_tiers`, in bytes."""
    text = f"the values that may go there need {format_size(need)}, and there is room for {tier.capacity} bytes"
    return Refusal(f"offload to {tier.name}", f"{text}: {tier.why}" if tier.why else text)


def _unknown(repeatable: tuple[str, ...]) -> Iterator[Refusal]:
    """Declarations that match no operator: it is registered later than this graph is planned, or misspelled."""
    names = compat.operator_names() if repeatable else set()
    for pattern in repeatable:
        if not fnmatch.filter(names, pattern):
            others = sorted(name for name in names if not name.startswith(("aten::", "prims::")))
            near = difflib.get_close_matches(pattern, others, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            yield Refusal(f"option 'repeatable': {pattern!r}", f"no operator of that name is registered{hint}")


def offload_refusals(planner: Planner, chosen: Candidate, tiers: Tiers) -> Iterator[Refusal]:
    """Tiers that only rules use, and values that a rule sends away and that stay."""
    if planner.offloader is None:
        return
    for tier in tiers.tiers:
        if tier.only_rules:
            reason = "the CPU's own memory is where the values are already: only rules send values there, to no gain"
            yield Refusal(f"offload to {tier.name}", reason)
    for i, reason in planner.offloader.leaving.refused(chosen):
        value = planner.facts.values[i]
        if value.pin is not None:
            yield Refusal(f"offload {value.name} ({value.pin.origin})", reason)
