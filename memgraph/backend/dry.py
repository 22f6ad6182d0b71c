"""Plan without a device: a graph is captured and planned as in a training run; nothing runs or is compiled.

Dynamo traces the function, AOTAutograd and Inductor's joint passes make the joint graph, it is planned, cut
and verified, and there it ends (capture.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memgraph.backend.budget import bound_of, budget_of, nested_note
from memgraph.backend.capture import Step, Target, captured
from memgraph.backend.destinations import tiers
from memgraph.backend.exact import exact as measured
from memgraph.backend.hook import Partitioner
from memgraph.backend.keeping import with_plan
from memgraph.backend.options import parse_options
from memgraph.backend.outcome import budget_error, build_report, with_least
from memgraph.backend.planned import Planned
from memgraph.machine.hardware import Hardware
from memgraph.reporting.log import trace
from memgraph.reporting.report import Report
from memgraph.step.future_optimizer import Optimizer


def plan(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    hardware: Hardware | str | None = None,
    optimizer: Optimizer | None = None,
    exact: bool = False,
    **kwargs: Any,
) -> Any:
    """Return the report of what the memgraph backend with these options would plan at the call `fn(*args, **kwargs)`.

    The peak is that of the graph sweep: what Inductor allocates is known only once it has lowered the graph.
    The baseline is the bytes of parameters, buffers and inputs. Where Dynamo makes several graphs of `fn`,
    the first one is planned, and a note says so.

    device: where the step shall run; by default that of `hardware`, else where the tensors are; for meta
    tensors this machine's GPU, or its CPU where there is none. hardware: the figures to plan with: a
    Hardware, the name of a device whose figures are built in ("H100"), or None for those of `device`. A
    budget of "auto" is the capacity in these figures, less a margin. optimizer: what will own the parameters, whose
    state is counted as "to come": the name of a class of torch.optim ("adamw", "adamw(fused=True)"), or anything that
    makes an optimizer of a list of parameters; None where there is none, or its state is there already.

    exact: in a process on a simulated card, compile the step and run it, and return a `memgraph.backend.exact.Exact`
    with what each phase of it took. The card is the device, and its figures are those to plan with.

    Raises OptionsError; BudgetError where the budget cannot be reached; MemgraphError where there is nothing
    to plan; and what Dynamo raises where it cannot trace `fn`.
    """
    if exact:
        return measured(fn, *args, options=options, optimizer=optimizer, **kwargs)
    target = Target.of(parse_options(options), hardware, device, optimizer)
    report, planned = captured(fn, args, kwargs, target, _planned)
    if report.budget is not None and report.predicted_peak > report.budget - report.reserve:
        minimum = report.predicted_peak + report.reserve
        raise budget_error(report, planned, target.options, minimum=minimum, budget=report.budget, estimated=True)
    trace(report)
    return report


def _planned(step: Step) -> tuple[Report, Planned]:
    """The plan of a step, and its report."""
    options, hardware, level = step.options, step.hardware, step.baseline + step.to_come
    found = tiers(options, hardware, here=False)
    bound = bound_of(options, budget_of(hardware, options), level, step.device)
    partitioner = Partitioner(options, hardware, bound, step.progress, step.name, found)
    kernels = step.partition(partitioner)
    planned = partitioner.planned[-1]
    notes = (*found.notes, *nested_note(len(partitioner.planned)), *kernels)
    name = f"dry-{partitioner.uuid()[:16]}"
    report = dry_report(step, planned, name, None if bound.bytes is None else level + bound.bytes, notes)
    return with_plan(report, partitioner.planned, options, hardware.name), planned


def dry_report(step: Step, planned: Planned, key: str, budget: int | None, notes: tuple[str, ...]) -> Report:
    """The report of a plan that nobody has lowered.  budget: in bytes with the baseline; None for a share, or none."""
    told = () if step.optimizer is None or not step.optimizer.note else (step.optimizer.note,)
    report = build_report(
        planned,
        step.options,
        None,
        key=key,
        graph=step.name,
        device=step.device,
        baseline=step.baseline,
        to_come=step.to_come,
        standing=step.standing,
        budget=budget,
        stages=(*step.progress.stages, ("all", time.perf_counter() - step.start)),
        notes=(
            f"planned with the figures of {step.hardware.name}; nothing was compiled or run",
            *step.notes,
            *told,
            *notes,
        ),
        attempts=1,
        calibrated=step.hardware.measured,
        refusals=step.refusals,
    )
    return with_least(report, planned)


__all__ = ["plan"]
