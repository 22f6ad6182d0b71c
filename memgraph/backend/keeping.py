"""What a report keeps of a plan, so that a file can hold it and another process can use it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import torch

from memgraph.backend.options import Options, of_a_plan
from memgraph.backend.planned import Planned
from memgraph.planner.step_plan import GraphPlan, StepPlan
from memgraph.reporting.report import Report


def with_plan(report: Report, planned: Sequence[Planned], options: Options, hardware: str) -> Report:
    """The report with the plan that it is of, and a note where the plan was given.

    planned: the graphs that were planned, the outermost last.  hardware: the name of the device whose figures were
    planned with.
    """
    graphs = [_graph_plan(each, report.graph, each.chosen.peak) for each in planned[:-1]]
    graphs.append(_graph_plan(planned[-1], report.graph, report.above))
    known = tuple(graph for graph in graphs if graph is not None)
    told = of_a_plan(options)
    if told["outline"] == "auto" and not any(each.outlining.bodies for each in planned):
        told["outline"] = False  # and not what "auto" comes to where the plan is used
    plan = StepPlan(
        graphs=known,
        requested=report.requested,
        budget=report.budget,
        device=torch.device(report.device).type,
        hardware=hardware,
        options=json.dumps(told, sort_keys=True),
        versions=report.versions,
    )
    given = ("by the plan of option 'plan', as it is: nothing was planned",) if options.plan is not None else ()
    return dataclasses.replace(report, plan=plan if known else None, notes=(*given, *report.notes))


def _graph_plan(planned: Planned, graph: str, peak: int) -> GraphPlan | None:
    """The plan of one graph; None where it is not known which one it is.  peak: bytes above the level."""
    if planned.identity is None:
        return None
    plan = planned.plan.without_sources()
    return GraphPlan(graph=graph, identity=planned.identity, plan=plan, peak=peak, seconds=planned.seconds)
