"""A few steps of training on the simulated device, and what the allocator says of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import memgraph
from memgraph.backend import memgraph as memgraph_backend
from memgraph.reporting.report import Report
from tests.simulated.models import made


@dataclasses.dataclass(frozen=True)
class Trained:
    """Peaks above what stands before and after each step, in bytes; the first step compiles."""

    report: Report
    requested: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: int
    """At the end."""
    baseline: int
    """Allocated before each step but the first."""

    @property
    def predicted(self) -> int:
        return self.report.above

    @property
    def allowed(self) -> int | None:
        return None if self.report.budget is None else self.report.budget - self.report.baseline

    def __str__(self) -> str:
        return (
            f"predicted {self.predicted:,} requested {self.requested} allocated {self.allocated} reserved "
            f"{self.reserved:,} allowed {self.allowed} baseline {self.report.baseline:,} {self.baseline:,} "
            f"unplanned {self.report.unplanned_peak - self.report.baseline:,} {self.report.source_of_peak} "
            f"attempts {self.report.attempts} notes {self.report.notes}"
        )


def train(name: str, options: dict[str, Any], steps: int = 3, **arguments: Any) -> Trained:
    """Train a model of `models.MODELS` by memgraph's plan."""
    torch._dynamo.reset()
    model, loss, batch = made(name, **arguments)

    def backend(graph: Any, inputs: Any) -> Any:
        made = memgraph_backend(graph, inputs, options={"cache": False, **options})
        torch.cuda.reset_peak_memory_stats()  # what compiling has taken is no part of the first step
        return made

    compiled = torch.compile(loss, backend=backend)
    requested, allocated = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        compiled(*batch).backward()
        torch.cuda.synchronize()
        model.zero_grad(set_to_none=True)
        now = torch.cuda.memory_stats()
        requested.append(now["requested_bytes.all.peak"] - now["requested_bytes.all.current"])
        allocated.append(now["allocated_bytes.all.peak"] - now["allocated_bytes.all.current"])
    now = torch.cuda.memory_stats()
    reserved, baseline = now["reserved_bytes.all.current"], now["allocated_bytes.all.current"]
    return Trained(memgraph.report(), tuple(requested), tuple(allocated), reserved, baseline)
