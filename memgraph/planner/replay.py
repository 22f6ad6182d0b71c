"""A plan that was kept, as the candidate that it was made of: what the sweep, the report and the passes go by.

Problem: names of steps, copies and transfers are given; which schedule of this graph is that, and where does it peak?

Why not a library: it is `make_plan` (explain.py) read backwards. Nothing is chosen, and nothing is repaired: a plan
that does not fit the graph is refused.

Algorithm: names become indices, steps become programs, transfers become moves; the sweep judges what comes out.

Oracle: tests/properties/test_plan_files.py: the plan of the candidate is the plan that was kept.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from memgraph.base.errors import PlanError
from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.planner.candidates import Candidate, Candidates
from memgraph.planner.copies import Copies
from memgraph.planner.course import Course
from memgraph.planner.decisions import Doing, KernelEnd, Plan, node_name
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Clock, Move, drag, with_moves
from memgraph.planner.schedule import Copy, Schedule, backward_program, forward_program, held


def replayed(plan: Plan, candidates: Candidates, tiers: Tiers) -> Candidate:
    """The candidate of a plan.  tiers: those that there are now.

    Raises PlanError where the plan speaks of what this graph or this machine does not have.
    """
    facts = candidates.facts
    if plan.stock:
        if _names(facts, candidates.stock.schedule) != plan.saved:
            raise PlanError("the plan is Inductor's own partition, and that of this torch saves other values")
        return candidates.stock
    place = {value.name: i for i, value in enumerate(facts.values)}
    named = (*plan.saved, *plan.forward, *(step.name for step in plan.backward))
    missing = [name for name in named if name not in place]
    if missing:
        raise PlanError(
            f"the plan speaks of {missing[0]!r}, and this graph has no such value once torch has cleaned it"
        )
    schedule = _schedule(plan, facts, place)
    if not plan.transfers:
        return candidates.evaluate(schedule)
    clock = Clock(facts, schedule)
    moves = _moves(plan, schedule, clock, place, tiers)
    found = candidates.evaluate(with_moves(schedule, clock, moves))
    course = Course(facts, dataclasses.replace(found, moves=moves), tiers.tiers)
    stall = sum(work.end - work.start for work in course.works if work.doing is Doing.WAIT)
    by_name = {tier.name: tier for tier in tiers.tiers}
    taken = drag(facts, ((move.value, by_name[move.tier]) for move in moves), stall)
    return dataclasses.replace(found, moves=moves, stall=stall, drag=taken, seconds=found.seconds + stall + taken)


def _names(facts: JointFacts, schedule: Schedule) -> tuple[str, ...]:
    return tuple(facts.values[i].name for i in schedule.saved)


def _schedule(plan: Plan, facts: JointFacts, place: Mapping[str, int]) -> Schedule:
    """The schedule of a plan.  Raises PlanError where the backward could not run so."""
    values, ours = facts.values, set(facts.backward)
    saved = tuple(place[name] for name in plan.saved)
    if unfit := [values[i].name for i in saved if i in ours or values[i].kind == "tangent"]:
        raise PlanError(f"the plan saves {unfit[0]!r}, which is no value of the forward")
    steps = tuple((place[step.name], step.copy) for step in plan.backward)
    number: dict[Copy, int] = {}
    reads: list[tuple[int, ...]] = []
    given = {*saved, *facts.primals, *facts.tangents}
    there: set[Copy] = {(i, 0) for i in given}
    times: collections.Counter[int] = collections.Counter()
    for n, (step, (i, copy)) in enumerate(zip(plan.backward, steps, strict=True)):
        inputs = values[i].inputs
        if len(step.reads) != len(inputs):
            raise PlanError(f"the plan computes {step.name!r} of {len(step.reads)} values, and it reads {len(inputs)}")
        read = tuple(zip(inputs, step.reads, strict=True))
        if lacking := [values[j].name for j, source in read if (j, source) not in there]:
            raise PlanError(f"the plan computes {step.name!r} before {lacking[0]!r}, which it reads, is there")
        if i not in ours and (fixed := values[i].fixed):
            raise PlanError(f"the plan computes {step.name!r} again, and that {fixed}")
        if i in given or copy != times[i]:
            raise PlanError(f"the plan computes {step.name!r} out of turn, as number {copy} of its computations")
        times[i] += 1
        there.add((i, copy))
        number[i, copy] = n
        reads.append(tuple(number.get(source, held(source[0])) for source in read))
    needed = (*facts.backward, *facts.backward_outputs)
    if undone := [values[i].name for i in needed if (i, 0) not in there]:
        raise PlanError(f"the plan never computes {undone[0]!r}, which is a part of the backward")
    program = backward_program(facts, saved, [i for i, _ in steps], reads, settle=True)
    wanted = set(plan.settled)
    settled = {s for s, (i, n) in enumerate(steps, program.inputs) if node_name(values[i].name, n) in wanted}
    return Schedule(
        saved=saved,
        forward=_forward(plan, facts, saved, place),
        backward=dataclasses.replace(program, settled=frozenset(settled)),
        seconds=_seconds(facts, steps),
        recomputed=frozenset(i for i, _ in steps if i not in ours),
        copies=Copies.OF_HELD,
    )


def _forward(plan: Plan, facts: JointFacts, saved: tuple[int, ...], place: Mapping[str, int]) -> Program:
    """What the forward of a plan runs.  Raises PlanError where it could not run so."""
    values, left, there = facts.values, set(facts.forward), set(facts.primals)
    order = tuple(place[name] for name in plan.forward)
    for i in order:
        if i not in left:
            raise PlanError(f"the plan computes {values[i].name!r} in the forward twice, or it is no value of it")
        if lacking := [values[j].name for j in values[i].inputs if j not in there]:
            raise PlanError(f"the plan computes {values[i].name!r} before {lacking[0]!r}, which it reads, is there")
        left.remove(i)
        there.add(i)
    if not order:  # an earlier version made the plan
        return forward_program(facts, saved, facts.stock_forward)
    if undone := [values[i].name for i in forward_program(facts, saved).values if i not in there]:
        raise PlanError(f"the plan never computes {undone[0]!r}, which is a part of the forward")
    return forward_program(facts, saved, order)


def _seconds(facts: JointFacts, steps: tuple[Copy, ...]) -> tuple[float, ...]:
    """By region, the time of what is computed again for it: right before the step that needs it."""
    found = [0.0] * len(facts.region_names)
    ours, region = set(facts.backward), facts.values[facts.backward[-1]].region if facts.backward else 0
    for i, _ in reversed(steps):
        if i in ours:
            region = facts.values[i].region
        elif found:
            found[region] += facts.values[i].seconds
    return tuple(found)


def _moves(plan: Plan, schedule: Schedule, clock: Clock, place: Mapping[str, int], tiers: Tiers) -> tuple[Move, ...]:
    """The copies of a plan.  Raises PlanError where there is no such tier, or a copy cannot stand where it should."""
    step = {each: n for n, each in enumerate(schedule.backward_steps)}
    found: list[Move] = []
    for transfer in plan.transfers:
        if tiers.named(transfer.tier) is None:
            raise PlanError(f"the plan sends {transfer.name!r} to the {transfer.tier} tier, which there is not")
        value, finish = place.get(transfer.name, -1), clock.slot.get(place.get(transfer.finish, -1))
        load, use = (step.get((place.get(name, -1), copy)) for name, copy in (transfer.load, transfer.use))
        if finish is None or load is None or use is None or value not in schedule.saved:
            raise PlanError(f"the plan copies {transfer.name!r} at a place that this graph does not have")
        if clock.last_read[clock.slot[value]] > finish:
            raise PlanError(f"the plan takes {transfer.name!r} away before the forward has read it")
        if not load <= use == clock.first_use.get(value):
            raise PlanError(f"the plan brings {transfer.name!r} back after the backward has read it")
        found.append(Move(value, transfer.tier, finish, load, use))
    return tuple(found)


def replayed_ends(given: Plan) -> tuple[KernelEnd, ...]:
    """Where kernels end by a given plan.  Raises PlanError where it does not run what it names there, in that order."""
    order = {"forward": given.forward, "backward": tuple(node_name(step.name, step.copy) for step in given.backward)}
    for end in given.kernel_ends:
        place = {name: n for n, name in enumerate(order.get(end.phase, ()))}
        at = place.get(end.before)
        if at is None or any(place.get(name, at) >= at for name in end.written):
            raise PlanError(f"the plan ends kernels before {end.before!r}, where its {end.phase} has no such place")
    return given.kernel_ends
