"""Train models that do not fit: save, recompute, offload and tile under a budget in bytes, planned by the compiler.

    model = torch.compile(model, backend="memgraph", options={"budget": "20GiB"})
"""

from memgraph.errors import BudgetError, MemgraphError, OffloadError, OptionsError, VerifyError
from memgraph.measure import measure_peak
from memgraph.report import Report, report, reports

__all__ = [
    "BudgetError",
    "MemgraphError",
    "OffloadError",
    "OptionsError",
    "Report",
    "VerifyError",
    "measure_peak",
    "report",
    "reports",
]
