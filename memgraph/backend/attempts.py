"""Plan under a budget, lower, read the truth, and plan again where it breaks the budget.

attempt:  plan under (bound - margin) -> Inductor -> what its wrappers allocate -> at most the bound?
          yes: done.  no: margin grows by what was missed.  last attempt: the lowest peak there is, or BudgetError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import Any

import torch

from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.destinations import reserve, room, tiers
from memgraph.backend.hook import Partitioner
from memgraph.backend.inductor import Graph, Job, key_of, lower, read_step
from memgraph.backend.joint_graph import SPARE, Bound, Planned
from memgraph.backend.options import Options, parse_options
from memgraph.backend.outcome import budget_error, build_report, found_again
from memgraph.base.errors import GraphError, OffloadError
from memgraph.base.store import Store
from memgraph.facts import kernel_scratch
from memgraph.lower.wrapper import NotReadable
from memgraph.machine import memory
from memgraph.machine.hardware import load
from memgraph.machine.measure import allocated_bytes
from memgraph.passes.graphs import Captured
from memgraph.planner.decisions import Timeline
from memgraph.reporting.report import Report, record

ATTEMPTS = 4
# Times that a graph is planned anew since others took the room of a tier meanwhile.
REPLANNED = 3
# Added to the smallest budget that an error names: the baseline of the next compilation may hold a few small tensors
# more (Dynamo keeps the random generator's state, 5,056 bytes, while a traceback of a failed compilation lives).
SLACK = 64 * 1024
# What "auto" leaves free: fragmentation, and what libraries allocate for themselves.
AUTO_MARGIN = 0.05


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A plan that was lowered.

    bound: what it was made for.  room: bytes that one step takes of each tier, by name, nested regions included.
    above: bytes above the baseline that it reaches.
    """

    bound: Bound
    compiled: Any
    planned: Planned
    room: dict[str, int]
    report: Report
    above: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """What the plan store has of a graph: the bound of a plan, and its report and room, or its peak above the baseline.

    room: as of `Attempt`.
    """

    bound: Bound
    report: Report | None = None
    room: dict[str, int] = dataclasses.field(default_factory=dict)
    above: int | None = None


class Attempts:
    """Compiles one Dynamo graph that is trained."""

    def __init__(self, job: Job) -> None:
        self.options, self.device, self.progress, self.name = job.options, job.device, job.progress, job.name
        rewritten = before_autograd(Captured(job.gm, job.inputs), job.options.tile)
        self.notes, self.refusals = rewritten.notes, rewritten.refusals
        self.job = dataclasses.replace(job, gm=rewritten.graphs.module)
        self.hardware = load(self.device)
        self.baseline = allocated_bytes(self.device)
        self.budget = self._budget()
        self.store = Store()
        self.unplanned: Timeline | None = None  # what plain Inductor allocates, where that was asked for
        self.tiers = tiers(self.options, self.hardware, device=self.device)
        self.kernels = kernel_scratch.for_compilation(self.budget, self.baseline, self.options.cache)
        self.replanned = 0  # times, since a tier had less room than it said
        self.start = time.perf_counter()

    def run(self) -> Any:
        """The compiled callable.  Raises BudgetError, OffloadError, and whatever stands in the way of a plan."""
        with kernel_scratch.looking_up(self.kernels):
            return self._run()

    def _run(self) -> Any:
        wanted = self._bound()
        if wanted.fraction is not None:
            wanted = self._share_of_unplanned(wanted)
        key = self._key(wanted, self.options)
        kept, lowest = self._kept(key), self._lowest(wanted)
        resort = lowest if lowest is not None and lowest.above <= wanted.above_baseline(0) else None
        bound = wanted if kept is None else kept.bound
        if kept is None and resort is not None and resort.above > wanted.above_baseline(0) * (1 - SPARE):
            bound, resort = resort.bound, None  # there is no room for anything faster
        tried: list[Attempt] = []
        for number in range(1, ATTEMPTS + 1):
            bound = dataclasses.replace(bound, last=bound.last or number == ATTEMPTS)
            found = self._attempt(key, bound, kept, wanted, number)
            if not isinstance(found, Attempt):
                return found
            tried.append(found)
            limit = _limit(wanted, found.planned)
            if limit is None or found.above <= limit:
                return self._accept(key, found)
            smallest = found.planned.plan.peak > limit - bound.margin  # the planner knows nothing smaller
            if bound.last or smallest:
                if resort is None:
                    break
                bound, resort = resort.bound, None
                continue
            # Lowering is taken to miss the sweep of the next plan by as much as it missed this one's.
            target = found.planned.plan.peak - (found.above - limit)
            margin = limit - int(target / (1 - SPARE))
            bound = dataclasses.replace(bound, margin=max(margin, bound.margin + 1))
        if self._saves_nothing(tried) and not self.options.strict:
            raise GraphError(
                "no plan of this graph has a lower peak than Inductor's own partition, so no share of that can be kept"
            )
        raise self._error(wanted, tried, lowest)

    def _saves_nothing(self, tried: list[Attempt]) -> bool:
        """Whether the budget is a share of a peak that no plan lowers, though values may be recomputed.

        So it is for a residual addition behind a graph break, say. The user asked for a share of what a plan can save,
        and did not name a bound: the run goes on.
        """
        if not isinstance(self.options.budget, float) or self.options.recompute is None:
            return False
        unplanned = tried[-1].planned.unplanned if self.unplanned is None else self.unplanned
        return min(attempt.above for attempt in tried) >= unplanned.peak

    def _attempt(self, key: str, bound: Bound, kept: Kept | None, wanted: Bound, number: int) -> Any:
        """One plan, lowered; or the callable itself, where it came from warm caches or nothing was differentiated."""
        partitioner = Partitioner(self.options, self.hardware, bound, self.progress, self.name, self.tiers)
        compiled, graphs = lower(self.job, partitioner, cache=self.options.cache)
        if not partitioner.planned:
            if kept is not None and kept.report is not None:  # everything came from the caches: the report did too
                stages = (*self.progress.stages, ("all", time.perf_counter() - self.start))
                report = found_again(kept.report, graph=self.name, baseline=self.baseline)
                report = dataclasses.replace(report, stages=stages)
                record(report)
                return self._with_room(compiled, kept.room)
            if not graphs:  # the caches knew the graph, the plan store does not
                compiled, graphs = lower(self.job, partitioner, cache=False)
            if not partitioner.planned:
                return compiled  # nothing was differentiated
        report, above = self._report(key, partitioner, graphs, wanted, number)
        needed = room((planned.plan for planned in partitioner.planned), self.tiers)
        return Attempt(bound, compiled, partitioner.planned[-1], needed, report, above)

    def _accept(self, key: str, found: Attempt) -> Any:
        record(found.report)
        if self.options.cache:
            bound = dataclasses.asdict(found.bound)
            self.store.put(key, {"bound": bound, "report": found.report.to_json(), "room": found.room})
        return self._with_room(found.compiled, found.room)

    def _error(self, wanted: Bound, tried: list[Attempt], lowest: Kept | None) -> Exception:
        """The error of a budget that was not kept. It names the lowest peak seen, and the plan of that is kept.

        Without a plan store it names the peak of the last attempt: every smaller budget ends in that one, too, while a
        plan in between might not be found again.
        """
        best = min(tried, key=lambda attempt: attempt.above) if self.options.cache else tried[-1]
        above = best.above
        if lowest is not None and lowest.above <= above:
            above = lowest.above
        elif self.options.cache and wanted.bytes is not None:
            bound = dataclasses.asdict(best.bound)
            self.store.put(self._key(None, self._any_budget), {"bound": bound, "above": above})
        held = self.baseline + wanted.reserve
        limit = _limit(wanted, best.planned)
        minimum, budget = held + above + SLACK, held + limit
        return budget_error(best.report, best.planned, self.options, minimum=minimum, budget=budget)

    def _share_of_unplanned(self, bound: Bound) -> Bound:
        """A fraction as bytes: of what the same graph allocates when plain Inductor lowers it.

        That costs a compilation, once for a graph. Where its wrapper cannot be read, the fraction is one of the sweep.
        """
        plain = parse_options(
            {
                "budget": None,
                "retain_graph": self.options.retain_graph,
                "inductor": self.options.inductor,
                "mode": self.options.mode,
                "verify": self.options.verify,
            }
        )
        key = self._key(Bound(), plain)
        record = self.store.get(key) if self.options.cache else None
        with contextlib.suppress(TypeError, ValueError, KeyError):  # none kept, or damaged: as good as none
            self.unplanned = Timeline.from_rows(record["unplanned"])
        if self.unplanned is None:
            job = dataclasses.replace(self.job, options=plain, name=f"{self.name}, unplanned")
            partitioner = Partitioner(plain, self.hardware, Bound(), self.progress, job.name)
            for cache in (self.options.cache, False):  # a warm cache answers without the partitioner
                _, graphs = lower(job, partitioner, cache=cache)
                if graphs:
                    break
            if not partitioner.planned:
                return bound  # nothing was differentiated
            try:
                self.unplanned = read_step(graphs, self.device.type, retained=plain.retain_graph)
            except NotReadable:
                return bound
            if self.options.cache:
                self.store.put(key, {"unplanned": self.unplanned.rows()})
        peak = self.unplanned.peak
        return Bound(bytes=int(bound.fraction * peak), reserve=bound.reserve, unplanned=peak)

    def _kept(self, key: str) -> Kept | None:
        """The attempt that was accepted before for this key, where all of it is kept."""
        record = self.store.get(key) if self.options.cache else None
        try:
            if record is None or any(self.tiers.named(name) is None for name in record["room"]):
                return None
            needed = {name: int(size) for name, size in record["room"].items()}
            return Kept(Bound(**record["bound"]), report=Report.from_json(record["report"]), room=needed)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None  # written by another version, or damaged: as good as none

    def _lowest(self, wanted: Bound) -> Kept | None:
        """The lowest peak that a refused budget has found for this graph, where one was kept."""
        if wanted.bytes is None or not self.options.cache:
            return None
        record = self.store.get(self._key(None, self._any_budget))
        try:
            return record and Kept(Bound(**record["bound"]), above=int(record["above"]))
        except (KeyError, TypeError, ValueError):
            return None

    def _with_room(self, compiled: Any, needed: dict[str, int]) -> Any:
        """The compiled callable, with the tiers' room for one step taken before it first runs, until it is dropped.

        needed: bytes by the tier's name. Where others took the room since it was counted, the graph is planned anew
        with what is left. Raises OffloadError where a tier has less room than it says even then.
        """
        if not needed:
            return compiled
        try:
            return holding(compiled, reserve(needed, self.options, self.tiers, self.device, self.name))
        except OffloadError:
            left = tiers(self.options, self.hardware, device=self.device)
            if left == self.tiers or self.replanned == REPLANNED:
                raise
            self.tiers, self.replanned = left, self.replanned + 1
        return self._run()

    def _budget(self) -> int | None:
        """The budget in bytes, baseline included; None for a fraction (known once the graph is) or no bound."""
        budget = self.options.budget
        if budget != "auto":
            return budget if isinstance(budget, int) else None
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            usable = free + torch.cuda.memory_reserved(self.device)
        else:
            total = self.hardware.capacity
            usable = memory.free_memory() + self.baseline
        # Rounded, so that the caches are not asked for another configuration whenever a neighbour breathes.
        step = max(1, total // 64)
        return int(usable * (1 - AUTO_MARGIN)) // step * step

    def _bound(self) -> Bound:
        reserve = self.options.held_back
        if isinstance(self.options.budget, float):
            return Bound(fraction=self.options.budget, reserve=reserve)
        return Bound(None if self.budget is None else self.budget - self.baseline, None, reserve)

    @property
    def _any_budget(self) -> Options:
        return self.options.model_copy(update={"budget": None})

    def _key(self, bound: Bound | None, options: Options) -> str:
        """The name of this graph under this configuration, for the plan store."""
        return key_of(self.job, options.key(), repr(bound), self.hardware.to_json(), repr(self.tiers))

    def _report(
        self, key: str, partitioner: Partitioner, graphs: list[Graph], wanted: Bound, attempts: int
    ) -> tuple[Report, int]:
        """The report of one attempt, and the peak above the baseline as lowered."""
        planned = partitioner.planned[-1]
        notes = [*self.notes, *self.tiers.notes]
        try:
            truth: Timeline | None = read_step(graphs, self.device.type, retained=planned.facts.retained)
        except NotReadable as problem:
            truth = None
            notes.append(f"Inductor's wrapper could not be read, the peak is the graph sweep's: {problem}")
        if len(partitioner.planned) > 1:
            notes.append(f"{len(partitioner.planned) - 1} nested regions were planned apart; this is the outer graph")
        if self.device.type == "cpu":
            notes.append("the baseline counts the tensors that Python can see; the CPU has no allocator statistics")
        notes += self.kernels.notes
        limit = _limit(wanted, planned)
        report = build_report(
            planned,
            self.options,
            truth,
            key=key,
            graph=self.name,
            device=str(self.device),
            baseline=self.baseline,
            budget=None if limit is None else self.baseline + wanted.reserve + limit,
            stages=(*self.progress.stages, ("all", time.perf_counter() - self.start)),
            notes=tuple(notes),
            attempts=attempts,
            unplanned=self.unplanned,
            calibrated=self.hardware.measured,
            refusals=self.refusals,
        )
        return report, report.predicted_peak - self.baseline


def _limit(wanted: Bound, planned: Planned) -> int | None:
    """Bytes above the baseline that a step may reach; of a fraction that is not known in bytes, by the sweep."""
    return planned.bound if wanted.fraction is not None else wanted.above_baseline(0)


def holding(compiled: Any, kept: list[Any]) -> Any:
    """The same callable, which keeps some objects alive for as long as it lives itself."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        return compiled(*args)

    call._kept = kept
    if getattr(compiled, "_boxed_call", False):
        call._boxed_call = True
    return call
