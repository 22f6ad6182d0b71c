"""Train models that do not fit: under a budget in bytes, planned by the compiler.

model = torch.compile(model, backend="memgraph", options={"budget": "20GiB"})
"""

from typing import TYPE_CHECKING, Any

from memgraph.base.errors import BudgetError, MemgraphError, OffloadError, OptionsError, PlanWarning, VerifyError
from memgraph.machine.measure import measure_peak
from memgraph.reporting.log import report, reports
from memgraph.reporting.report import Report

if TYPE_CHECKING:
    from memgraph.backend.dry import plan

__all__ = [
    "BudgetError",
    "MemgraphError",
    "OffloadError",
    "OptionsError",
    "PlanWarning",
    "Report",
    "VerifyError",
    "measure_peak",
    "plan",
    "report",
    "reports",
]


def __getattr__(name: str) -> Any:
    if name == "plan":  # it loads Inductor, which takes as long as torch itself
        from memgraph.backend.dry import plan

        return plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
