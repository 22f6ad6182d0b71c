"""What one compiled step allocates, by the code that Inductor generated, and the report of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from memgraph.decisions import timeline
from memgraph.lowered import read_wrapper, saved_inputs, step_timeline
from memgraph.options import Options
from memgraph.partitioner import Partitioner, source_fingerprint
from memgraph.planner.plan import Refusal, Timeline
from memgraph.planning import Planned
from memgraph.report import SWEEP, WRAPPER, Report
from memgraph.wrapper import NotReadable


@dataclasses.dataclass
class Lowering:
    """What Inductor made in one attempt.  wrappers: (phase, inputs, source) of every graph that it lowered."""

    wrappers: list[tuple[str, Any, str | None]] = dataclasses.field(default_factory=list)


def build_report(
    planned: Planned,
    options: Options,
    truth: Timeline | None,
    *,
    baseline: int,
    budget: int | None,
    unplanned: Timeline | None = None,
    refusals: tuple[Refusal, ...] = (),
    **known: Any,
) -> Report:
    """The report of one planned graph.

    truth: what Inductor's wrappers allocate, or None where only the sweep is known.  budget: bytes, or None where the
    graph decides.  unplanned: what plain Inductor allocates, where it was asked.
    known: the report's fields that the plan does not speak of.
    """
    plain = truth is not None and planned.plain
    above = truth.peak if truth is not None else planned.chosen.peak
    if unplanned is None and plain:
        unplanned = truth
    swept = unplanned is None
    unplanned = planned.unplanned if swept else unplanned
    if planned.bound is not None and budget is None:
        budget = baseline + options.held_back + planned.bound
    return Report(
        requested=str(options.budget),
        budget=budget,
        reserve=options.held_back,
        baseline=baseline,
        unplanned_peak=baseline + unplanned.peak,
        source_of_unplanned_peak=SWEEP if swept else WRAPPER,
        predicted_peak=baseline + above,
        source_of_peak=WRAPPER if truth is not None else SWEEP,
        predicted_time=planned.seconds,
        unplanned_time=planned.unplanned_seconds,
        recompute_time=max(0.0, planned.chosen.seconds - planned.chosen.stall),
        stall_time=planned.chosen.stall,
        decisions=planned.plan.decisions,
        refusals=planned.refusals + refusals,
        timeline=truth if truth is not None else timeline(planned.facts, planned.chosen),
        unplanned_timeline=unplanned,
        binding=planned.binding(),
        versions=(("torch", torch.__version__), ("memgraph", source_fingerprint()[:12])),
        **known,
    )


def read_step(partitioner: Partitioner, lowering: Lowering, device: str) -> Timeline:
    """What one forward and backward of the outermost graph allocate, by Inductor's wrappers.

    Raises NotReadable where a wrapper's effect on memory is not known.
    """
    planned: Planned = partitioner.planned[-1]
    found = {phase: (given, source) for phase, given, source in lowering.wrappers}
    missing = {"forward", "backward"} - {phase for phase, (_, source) in found.items() if source}
    if missing:
        raise NotReadable(f"no Python wrapper of the {' and the '.join(sorted(missing))}")
    given, source = found["forward"]
    forward = read_wrapper(source, given, "forward", device=device)
    given, source = found["backward"]
    links = partitioner.links[-1]
    inputs = saved_inputs(given, forward, links, held=planned.num_fwd_outputs)
    if planned.facts.retained:  # autograd keeps them until the graph goes
        inputs = tuple(dataclasses.replace(i, owned=i.owned and n not in links) for n, i in enumerate(inputs))
    backward = read_wrapper(source, inputs, "backward", device=device)
    return step_timeline(forward, backward, links)
