"""A few steps of training on the simulated device, and what the allocator says of each."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import torch

import memgraph
from memgraph.backend import memgraph as memgraph_backend
from memgraph.reporting.report import Report
from tests.simulated.models import made

# Bytes that a prediction may be off.
EXACT = 4 * 1024


@dataclasses.dataclass(frozen=True)
class Trained:
    """Peaks of each backward above what stands before, in bytes; the first step compiles.

    A later launch that is planned anew, before gradients that stand already, compiles in its midst: it has none here.
    """

    report: Report
    requested: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: int
    """At the end."""
    baseline: int
    """Allocated before each step but the first."""
    budget: float | None
    """As it was asked for."""
    level: int
    """The same before the last backward: with gradients that it adds to."""
    launched: tuple[int | None, ...]
    """As the step's report predicts each backward, in whole blocks; None without a budget in bytes."""

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
            f"launched {self.launched} level {self.level:,} attempts {self.report.attempts} notes {self.report.notes}"
        )


def train(name: str, options: dict[str, Any], *, steps: int = 3, backwards: int = 1, **arguments: Any) -> Trained:
    """Train a model of `models.MODELS` by memgraph's plan.

    backwards: so many add up their gradients in a step; each has its own peak above what stands when it begins.
    """
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    model, loss, batch = made(name, **arguments)

    def backend(graph: Any, inputs: Any) -> Any:
        made = memgraph_backend(graph, inputs, options={"cache": False, **options})
        torch.cuda.reset_peak_memory_stats()  # what compiling has taken is no part of the first step
        return made

    step = torch.compile(loss, backend=backend)
    budget, peaks, launched, level = options["budget"], [], [], 0
    seen = 0
    for number in range(steps):
        found, plans = [], []
        for _ in range(backwards):
            found.append(_peaks(lambda: step(*batch).backward()))
            plans.append((len(memgraph.reports()), _predicted(budget)))
        model.zero_grad(set_to_none=True)
        # What compiling leaves for good stands after the first backward alone.
        levels = [bytes_of("current"), *(before for before, _ in found[1:])]
        for place, ((_, peak), before, (known, predicted)) in enumerate(zip(found, levels, plans, strict=True)):
            if (number or place) and known > seen:
                seen = known
                continue
            seen = known
            peaks.append([most - below for most, below in zip(peak, before, strict=True)])
            launched.append(predicted)
        level = levels[-1][1]
    requested, allocated = zip(*peaks, strict=True)
    reserved, baseline = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    return Trained(memgraph.report(), requested, allocated, reserved, baseline, budget, level, tuple(launched))


def _predicted(budget: float | None) -> int | None:
    """Of the newest launch."""
    if not isinstance(budget, int):
        return None
    return memgraph.step_report().rounds[-1].launches[-1].predicted_above


def _peaks(work: Callable[[], None]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes that are requested and allocated before, and the most of them meanwhile."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = bytes_of("current")
    work()
    torch.cuda.synchronize()
    return before, bytes_of("peak")


def bytes_of(what: str) -> tuple[int, int]:
    now = torch.cuda.memory_stats()
    return now[f"requested_bytes.all.{what}"], now[f"allocated_bytes.all.{what}"]


def check(found: Trained) -> None:
    """Assert that what was predicted was requested, from the first step on, and that a budget was kept."""
    assert str(found.report.source_of_peak) == "inductor wrapper"
    assert not [note for note in found.report.notes if "tuned in the first step" in note]
    if len(set(found.launched)) == 1:  # one plan for all
        for requested in found.requested:
            assert abs(requested - found.predicted) <= EXACT, str(found)
        if found.allowed is not None:
            assert max(found.allocated) <= found.allowed, str(found)
    for allocated, predicted in zip(found.allocated, found.launched, strict=True):
        assert predicted is None or allocated <= predicted + EXACT, str(found)
    if isinstance(found.budget, int):
        assert found.level + found.allocated[-1] <= found.budget, str(found)
