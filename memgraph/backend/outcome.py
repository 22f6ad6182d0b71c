"""The outcome of one graph: its report, or the error that says why its budget cannot be kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memgraph.backend.budget import held_back
from memgraph.backend.options import Options
from memgraph.backend.planned import Planned
from memgraph.base.errors import BudgetError, FullTier
from memgraph.base.fingerprint import source_fingerprint
from memgraph.planner.candidates import Candidate
from memgraph.planner.course import described, held, named, timed, timeline
from memgraph.planner.decisions import Described, Refusal, Timeline
from memgraph.planner.explain import full_refusal
from memgraph.planner.queues import Tier
from memgraph.reporting.figures import Source
from memgraph.reporting.report import Report
from memgraph.step.variants import Entry


def build_report(
    planned: Planned,
    options: Options,
    truth: Timeline | None,
    *,
    device: torch.device,
    baseline: int,
    budget: int | None,
    to_come: int = 0,
    unplanned: Timeline | None = None,
    refusals: tuple[Refusal, ...] = (),
    origins: Mapping[str, Sequence[str]] | None = None,
    **known: Any,
) -> Report:
    """The report of one planned graph.

    truth: allocations that were read from Inductor's wrappers, or None where only the sweep is known.  device: whose
    memory is bounded.  budget: bytes; None where there is none, or where it is a share that only the plan has in bytes.
    to_come: bytes that the run allocates later and keeps.  unplanned: allocations of plain Inductor, where it lowered
    the graph.  origins: by buffer of the wrappers, the nodes that it comes from.
    known: the fields of the report that are not in the plan.
    """
    above = truth.peak if truth is not None else planned.chosen.peak
    known_values = {value.name for value in planned.facts.values}
    buffers = named(origins or {}, known_values)
    if truth is not None:
        truth, buffers = held(truth, buffers, known_values)
        truth = timed(truth, planned.course, buffers)
    if unplanned is None and planned.plain and not planned.outlining.bodies:
        unplanned = truth
    source_of_unplanned_peak = Source.SWEEP if unplanned is None else Source.WRAPPER
    unplanned = planned.unplanned if unplanned is None else dataclasses.replace(unplanned, reuses=())
    if planned.bound is not None and budget is None:
        budget = baseline + to_come + held_back(options, device) + planned.bound
    return Report(
        requested=str(options.budget),
        device=str(device),
        budget=budget,
        reserve=held_back(options, device),
        baseline=baseline,
        to_come=to_come,
        unplanned_peak=baseline + to_come + unplanned.peak,
        source_of_unplanned_peak=source_of_unplanned_peak,
        predicted_peak=baseline + to_come + above,
        source_of_peak=Source.WRAPPER if truth is not None else Source.SWEEP,
        predicted_time=planned.seconds,
        unplanned_time=planned.unplanned_seconds,
        **_times(planned.chosen),
        decisions=planned.plan.decisions,
        refusals=planned.refusals + refusals,
        timeline=timeline(planned.facts, planned.chosen, planned.course) if truth is None else truth,
        unplanned_timeline=unplanned,
        binding=planned.binding(),
        buffers=tuple(buffers.items()),
        works=planned.course.rounded(),
        described=_described(planned, unplanned, buffers),
        versions=_versions(),
        **known,
    )


def _times(chosen: Candidate) -> dict[str, Any]:
    """What a plan's extra time goes to."""
    again = max(0.0, chosen.seconds - chosen.stall - chosen.drag)
    return {"recompute_time": again, "stall_time": chosen.stall, "drag_time": chosen.drag}


def with_least(report: Report, planned: Planned) -> Report:
    """The report with what no plan can beat."""
    least = planned.least()
    if least is None:
        return report
    return dataclasses.replace(
        report, least_time=least.seconds, byte_price=least.price, least_peak=report.level + least.peak
    )


def _described(planned: Planned, unplanned: Timeline, buffers: Mapping[str, str]) -> tuple[Described, ...]:
    """What is known of all values that a report names.  buffers: values, by Inductor's buffer."""
    swept = timeline(planned.facts, planned.chosen)
    events = (event.value for some in (swept, unplanned) for event in some.events)
    names = (*buffers.values(), *(decision.name for decision in planned.plan.decisions), *events)
    return described(planned.course, planned.untiled or planned.facts, names)


def without_plan(
    options: Options, truth: Timeline, *, baseline: int, notes: tuple[str, ...] = (), **known: Any
) -> Report:
    """The report of a graph that could not be planned, and runs as Inductor has it.

    truth, known: as in `build_report`.
    """
    budget, truth = options.budget, dataclasses.replace(truth, reuses=())  # nothing is known of its buffers
    if isinstance(budget, float):
        budget = baseline + options.held_back + int(budget * truth.peak)
    return Report(
        requested=str(options.budget),
        budget=budget if isinstance(budget, int) else None,
        reserve=options.held_back,
        baseline=baseline,
        unplanned_peak=baseline + truth.peak,
        predicted_peak=baseline + truth.peak,
        source_of_unplanned_peak=Source.WRAPPER,
        source_of_peak=Source.WRAPPER,
        predicted_time=0.0,
        unplanned_time=0.0,
        recompute_time=0.0,
        timeline=truth,
        unplanned_timeline=truth,
        notes=("compiled as Inductor has it, without a plan: see what was refused", *notes),
        versions=_versions(),
        **known,
    )


def found_again(report: Report, *, graph: str, baseline: int, to_come: int, budget: int | None) -> Report:
    """The stored report of a graph that came from warm caches, moved to the baseline of this compilation.

    budget: in bytes, where the options say it; a share of the unplanned peak moves with the baseline.
    """
    moved = baseline + to_come - report.baseline - report.to_come
    return dataclasses.replace(
        report,
        graph=graph,
        baseline=baseline,
        to_come=to_come,
        budget=report.budget + moved if budget is None and report.budget is not None else budget,
        unplanned_peak=report.unplanned_peak + moved,
        predicted_peak=report.predicted_peak + moved,
        least_peak=None if report.least_peak is None else report.least_peak + moved,
        cached=True,
    )


def budget_error(
    report: Report,
    planned: Planned,
    options: Options,
    minimum: int,
    budget: int,
    estimated: bool = False,
    unfinished: bool = False,
    entry: Entry | None = None,
) -> BudgetError:
    """The error for a budget that no plan keeps.

    report, planned: of the plan with the lowest peak.  minimum, budget: bytes with the baseline.  estimated: whether
    the peak is the sweep's, without a lowering.
    unfinished: whether other graphs of the step are to come.  entry: the launch that is refused, where there is one.
    """
    told = {full_refusal(tier, need) for tier, need in planned.full}
    return BudgetError(
        minimum=minimum,
        binding=report.binding,
        budget=budget,
        refusals=((refusal.what, refusal.reason) for refusal in report.refusals if refusal not in told),
        unused=options.unused,
        baseline=report.baseline,
        states=entry.states if entry is not None else 0,
        others=entry.others if entry is not None else 0,
        to_come=report.to_come,
        reserve=report.reserve,
        full=(_full_tier(tier, need, options) for tier, need in planned.full),
        estimated=estimated,
        unfinished=unfinished,
        given=options.plan is not None,
    )


def _full_tier(tier: Tier, need: int, options: Options) -> FullTier:
    scratch = options.offload.nvme if options.offload is not None and tier.name == "nvme" else None
    assert tier.capacity is not None  # a tier without a bound is never full
    return FullTier(tier.name, tier.capacity, need, scratch.path if scratch is not None else "", tier.why)


def _versions() -> tuple[tuple[str, str], ...]:
    return (("torch", torch.__version__), ("memgraph", source_fingerprint()[:12]))
