"""The facts of one compilation of a graph that is trained."""

from __future__ import annotations

import dataclasses
import time

from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.budget import Bound, bound_of, budget_on
from memgraph.backend.destinations import tiers
from memgraph.backend.inductor import Job, key_of
from memgraph.backend.options import Options
from memgraph.machine.hardware import Hardware, load
from memgraph.machine.measure import allocated_bytes
from memgraph.passes.graphs import Captured
from memgraph.planner.decisions import Refusal
from memgraph.planner.offload import Tiers


@dataclasses.dataclass(frozen=True)
class TrainingJob(Job):
    """A job, and what its plans are made for."""

    hardware: Hardware
    baseline: int
    """Bytes that were allocated on the device when the compilation began."""
    budget: int | None
    """In bytes, with the baseline; None where there is none, or it is a share of the unplanned peak."""
    tiers: Tiers
    start: float
    """When the compilation began, by `time.perf_counter`."""
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """What was refused before autograd saw the graph."""

    @property
    def bound(self) -> Bound:
        """What the options allow above the baseline."""
        return bound_of(self.options, self.budget, self.baseline)

    def key(self, bound: Bound | None, options: Options) -> str:
        """The name of this graph under a configuration, for the plan store."""
        return key_of(self, options.key(), repr(bound), self.hardware.to_json(), repr(self.tiers))

    def stages(self) -> tuple[tuple[str, float], ...]:
        """Names and seconds of the stages so far, and of all of it."""
        return (*self.progress.stages, ("all", time.perf_counter() - self.start))

    def with_present_tiers(self) -> TrainingJob:
        """The same job with the room that the tiers have now."""
        return dataclasses.replace(self, tiers=tiers(self.options, self.hardware, device=self.device))


def training_job(job: Job) -> TrainingJob:
    """A job with the figures of this machine, its Dynamo graph made ready for tiles.

    Raises OffloadError where a tier cannot be used.
    """
    start = time.perf_counter()
    rewritten = before_autograd(Captured(job.gm, job.inputs), job.options.tile)
    hardware, baseline = load(job.device), allocated_bytes(job.device)
    known = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return TrainingJob(
        **known | {"gm": rewritten.graphs.module},
        hardware=hardware,
        baseline=baseline,
        budget=budget_on(job.device, job.options, hardware, baseline),
        tiers=tiers(job.options, hardware, device=job.device),
        start=start,
        notes=rewritten.notes,
        refusals=rewritten.refusals,
    )
