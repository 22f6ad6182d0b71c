"""Train models that do not fit: under a budget in bytes, planned by the compiler.

    model = torch.compile(model, backend="memgraph", options={"budget": "20GiB"})

The rooms, each of which uses only those below it (docs/architecture.md has the trip of a graph through them):

    cli          the command line
    integrations what fits memgraph into other libraries, such as the Trainer's callback
    backend      the conductor: options and a Dynamo graph in, a compiled callable out
    step         the run: launches, what will be allocated later, the ledger
    verify       a rewritten graph held against the one before it
    passes       the decisions realised          (passes/ at the top of the repository)
    lower        Inductor in the plan's order; its wrapper read back
    reporting    what was planned and measured: values, text, picture, page, trace
    planner      numbers in, decisions out
    facts        the joint graph as numbers
    simulator    a CUDA device that is not there
    machine      figures of this device and disk
    runtime      the operators that a compiled graph calls
    base         errors, sizes, the cache folder, torch's private names
"""

from typing import TYPE_CHECKING, Any

from memgraph.base.errors import (
    BudgetError,
    MemgraphError,
    OffloadError,
    OptionsError,
    PlanError,
    PlanWarning,
    RanksError,
    VerifyError,
)
from memgraph.machine.hardware import Hardware
from memgraph.planner.step_plan import StepPlan as Plan
from memgraph.reporting.log import report, reports
from memgraph.reporting.plan_diff import diff
from memgraph.reporting.report import Report
from memgraph.reporting.step_report import StepReport
from memgraph.step.run import measure_peak, step_report

if TYPE_CHECKING:
    from memgraph.backend.dry import plan
    from memgraph.backend.frontier import frontier
    from memgraph.backend.longest import longest
    from memgraph.runtime import statistics

__all__ = [
    "BudgetError",
    "Hardware",
    "MemgraphError",
    "OffloadError",
    "OptionsError",
    "Plan",
    "PlanError",
    "PlanWarning",
    "RanksError",
    "Report",
    "StepReport",
    "VerifyError",
    "diff",
    "frontier",
    "longest",
    "measure_peak",
    "plan",
    "report",
    "reports",
    "statistics",
    "step_report",
]


def __getattr__(name: str) -> Any:
    if name == "plan":  # it loads Inductor, which takes as long as torch itself
        from memgraph.backend.dry import plan

        return plan
    if name == "frontier":
        from memgraph.backend.frontier import frontier

        return frontier
    if name == "longest":
        from memgraph.backend.longest import longest

        return longest
    if name == "statistics":  # it registers the operators of the runtime
        from memgraph.runtime import statistics

        return statistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
