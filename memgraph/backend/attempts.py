"""Plan under a budget, lower, read the truth, and plan again where it breaks the budget.

attempt:  plan under (bound - margin) -> Inductor -> what its wrappers allocate -> at most the bound?
          yes: compile the kernels, done.  no: the margin grows by what was missed.
          last attempt: the lowest peak that there is, or BudgetError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from memgraph.backend.alike import name_of_plan
from memgraph.backend.attempt import Attempt, Next, first_attempt, plans_of
from memgraph.backend.budget import Bound, nested_note
from memgraph.backend.destinations import holding, reserve, tier_bytes
from memgraph.backend.hook import Partitioner
from memgraph.backend.inductor import (
    Graph,
    Job,
    begin,
    load,
    lower,
    origins_of,
    read_graphs,
    read_step,
    refuses_cuda_graphs,
    wrappers_of,
)
from memgraph.backend.keeping import with_plan
from memgraph.backend.outcome import budget_error, build_report, found_again, with_least
from memgraph.backend.planned import Planned
from memgraph.backend.planners import Planners
from memgraph.backend.records import Accepted, Lowest, Record, record_of_lowest
from memgraph.backend.training import Purpose, TrainingJob, training_job
from memgraph.backend.tuning import tune
from memgraph.backend.unplanned import unplanned_timeline
from memgraph.base import compat
from memgraph.base.errors import GraphError, OffloadError
from memgraph.base.garbage import without_collections
from memgraph.facts import kernel_scratch
from memgraph.lower.wrapper import NotReadable
from memgraph.machine import caching_allocator
from memgraph.planner.decisions import Timeline
from memgraph.reporting.log import record
from memgraph.reporting.report import Report
from memgraph.step.variants import Envelope, Sizes, Variant

ATTEMPTS = 4
# Times that a graph is planned anew because others took the room of a tier meanwhile.
REPLANNED = 3
# A step that takes at most this many times as long as Inductor's own is not worth another compilation.
PLAIN = 1.01
# Seconds in which a wrapper is imported at the latest, and the compiler has its kernels.
HANDED_OVER = 0.5
# Added to the smallest budget that an error names: the baseline of the next compilation may hold a few small tensors
# more (Dynamo keeps the random generator's state, 5,056 bytes, while a traceback of a failed compilation lives).
SLACK = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A graph after Inductor."""

    partitioner: Partitioner
    """What planned it; it has planned nothing where warm caches answered, or nothing is differentiated."""
    compiled: Any
    """What Dynamo calls in place of its graph."""
    graphs: list[Graph]
    """All graphs that Inductor lowered, the outermost of each phase last; none where warm caches answered."""


class Attempts:
    """Compiles one Dynamo graph that is trained."""

    def __init__(self, job: Job, purpose: Purpose | None = None) -> None:
        self.job: TrainingJob = training_job(job, purpose or Purpose())
        self.options = job.options
        self.kernels = kernel_scratch.for_compilation(
            self.job.budget, self.job.baseline, job.options.cache, self.job.device
        )
        self.planners = Planners()
        self.unplanned: Timeline | None = None  # what plain Inductor allocates, where that was asked for

    def run(self) -> Variant:
        """The compiled graph.  Raises BudgetError, OffloadError, and whatever stands in the way of a plan."""
        ranks = self.job.purpose.ranks
        with kernel_scratch.looking_up(self.kernels):
            if ranks is None:
                return self._with_room(REPLANNED)
            with ranks.telling():
                found = self._with_room(0)  # a rank that planned anew would have another plan
            ranks.same(f"the plan of {self.job.name}", found.name)
            return found

    def _with_room(self, replans: int) -> Variant:
        """The compiled graph; what one step keeps on each tier is reserved until the graph is dropped.

        Where others took the room since it was counted, the graph is planned anew with what is left, at most `replans`
        times. Raises OffloadError where a tier has too little room even then.
        """
        compiled, needed = self._compiled()
        if not needed:
            return compiled
        try:
            taken = reserve(needed, self.options, self.job.tiers, self.job.device, self.job.name)
        except OffloadError:
            left = self.job.with_present_tiers()
            if left.tiers == self.job.tiers or not replans:
                raise
            self.job = left
        else:
            return dataclasses.replace(compiled, call=holding(compiled.call, taken))
        return self._with_room(replans - 1)

    def _compiled(self) -> tuple[Variant, Mapping[str, int]]:
        """The compiled graph, and the bytes of each tier that its plan needs."""
        wanted = self.job.bound
        if wanted.fraction is not None:
            wanted = self._share_of_unplanned(wanted)
        place = Record(self.job, wanted, self.options)
        kept, lowest = self._remembered(place, wanted)
        step: Next | None = first_attempt(
            wanted, kept, lowest, self._limit(wanted), functions=self.job.device.type == "cpu"
        )
        tried: list[Attempt] = []
        fitting: list[tuple[Attempt, Lowered]] = []  # alone, and not with all that is sure to come beside it
        while step is not None and (plans_of(tried) < ATTEMPTS or step.bound.near):
            if plans_of(tried) == ATTEMPTS - 1:
                step = step.final()
            lowered, found, limit = self._tried(step.bound, kept, wanted, place.key, len(tried) + 1)
            if found is None:
                load(self.job, lowered.graphs)
                return self._found_again(lowered.compiled, kept)
            tried.append(found)
            if limit is None or found.reaches <= limit:
                return self._taken(found, lowered, place)
            if found.above <= limit:
                fitting.append((found, lowered))
            step = None if self.options.plan is not None else step.after(found, limit)
        if fitting:  # what is to come may be less: its own launches are held against the budget too
            return self._taken(*min(fitting, key=lambda pair: pair[0].reaches), place)
        raise self._error(wanted, tried, lowest)

    @without_collections()
    def _tried(
        self, bound: Bound, kept: Accepted | None, wanted: Bound, key: str, number: int
    ) -> tuple[Lowered, Attempt | None, int | None]:
        """The graph lowered by a plan for a bound, what came of it, and the limit that it is held against.

        No attempt where nothing was planned. Where it is within the limit its kernels are in the compiler's hands
        before Python collects what lowering left behind, which takes seconds for a deep model.
        """
        lowered = self._lowered(bound, kept)
        if not lowered.partitioner.planned:
            return lowered, None, None
        found = self.attempt(lowered, wanted, key, number)
        limit = self._limit(wanted, found.planned)
        if limit is None or found.reaches <= limit:
            begin(self.options, wrappers_of(lowered.graphs), seconds=HANDED_OVER)
        return lowered, found, limit

    def _taken(self, found: Attempt, lowered: Lowered, place: Record) -> tuple[Variant, Mapping[str, int]]:
        """The graph by an attempt, its kernels compiled, and what it needs of each tier; the plan store knows of it."""
        found = self._tuned(found, lowered)
        found = dataclasses.replace(found, report=with_least(found.report, found.planned))
        record(found.report)
        accepted = Accepted(found.bound, found.report, found.tier_bytes, found.planned.offers)
        place.write(accepted)
        return self._variant(found.compiled, accepted, found.report, lowered), found.tier_bytes

    def _remembered(self, place: Record, wanted: Bound) -> tuple[Accepted | None, Lowest | None]:
        """The accepted plan and the lowest peak of earlier compilations; none where the ranks do not have the same."""
        kept, lowest, ranks = self._accepted(place), self._lowest(wanted), self.job.purpose.ranks
        if ranks is not None:
            mine = repr((lowest, kept and (kept.bound, name_of_plan(kept.report))))
            if not ranks.agree("what is remembered", mine, lambda said: len(set(said)) == 1):
                return None, None
        return kept, lowest

    def _accepted(self, place: Record) -> Accepted | None:
        """The plan that was accepted before, where it keeps the budget now, and this machine has all of its tiers."""
        kept = place.read(Accepted)
        if kept is None or any(self.job.tiers.named(name) is None for name in kept.tier_bytes):
            return None
        limit = self._limit(place.bound or Bound())
        above = max(kept.report.above, _counted(kept.report.timeline, self.job.device.type).peak)
        return kept if limit is None or above <= limit else None

    def _lowest(self, wanted: Bound) -> Lowest | None:
        """The lowest peak that was found when a budget in bytes was refused before."""
        return None if wanted.bytes is None else record_of_lowest(self.job).read(Lowest)

    def _lowered(self, bound: Bound, kept: Accepted | None) -> Lowered:
        """The graph lowered by a plan for a bound, its kernels not compiled yet."""
        job = self.job
        partitioner = Partitioner(self.options, job.hardware, bound, job.progress, job.name, job.tiers, self.planners)
        compiled, graphs = lower(job, partitioner, cache=self.options.cache, loaded=False, wanted=True)
        if not partitioner.planned and not graphs and kept is None:  # Inductor's caches know more than the plan store
            compiled, graphs = lower(job, partitioner, cache=False, loaded=False, wanted=True)
        return Lowered(partitioner, compiled, graphs)

    def _found_again(self, compiled: Any, kept: Accepted | None) -> tuple[Variant, Mapping[str, int]]:
        """Record the report of a plan that came from warm caches; returns the graph and what it needs of each tier."""
        if kept is None:  # nothing is differentiated
            return Variant(compiled, 0.0, {self.job.entry.sizes: Envelope()}, plain=True), {}
        job = self.job
        to_come = job.entry.to_come
        report = found_again(kept.report, graph=job.name, baseline=job.baseline, to_come=to_come, budget=job.budget)
        report = dataclasses.replace(report, stages=job.stages(), standing=job.entry.standing, rank=compat.rank_here())
        record(report)
        return self._variant(compiled, kept, report), kept.tier_bytes

    def _variant(self, compiled: Any, plan: Accepted, report: Report, lowered: Lowered | None = None) -> Variant:
        """The graph under one plan.  report: as recorded.  lowered: read for other sizes; None after warm caches."""
        job, kernels = self.job, self.kernels
        graphs = [] if lowered is None else lowered.graphs
        dropped = () if lowered is None else lowered.partitioner.planned[-1].dropped
        symbols = [given.node.expr for given in job.inputs if compat.is_size(given)]
        device, retained = job.device.type, job.options.retain_graph

        def read(sizes: Sizes) -> Envelope:  # it must not know the job, whose inputs are the user's tensors
            with kernel_scratch.looking_up(kernels):
                values = dict(zip(symbols, sizes, strict=True))
                timeline = read_step(graphs, device, retained=retained, sizes=values, dropped=dropped)
                return Envelope.of(_counted(timeline, device))

        known = {job.entry.sizes: Envelope.of(_counted(report.timeline, device))}
        again = read if graphs and symbols else None
        return Variant(
            compiled,
            report.predicted_time,
            known,
            again,
            plan.offers,
            dropped=job.purpose.dropped,
            plain=report.predicted_time <= PLAIN * report.unplanned_time,
            report=report,
            name=name_of_plan(plan.report),
        )

    def attempt(self, lowered: Lowered, wanted: Bound, key: str, number: int) -> Attempt:
        """What came of a plan: its report, and the peak above the baseline as lowered."""
        job, everything = self.job, lowered.partitioner.planned
        planned = everything[-1]
        truth, notes = self._truth(planned, lowered.graphs)
        limit = self._limit(wanted, planned)
        report = build_report(
            planned,
            self.options,
            truth,
            key=key,
            graph=job.name,
            device=job.device,
            baseline=job.baseline,
            to_come=job.entry.to_come,
            budget=job.budget if limit is None else job.outside + wanted.reserve + limit,
            stages=job.stages(),
            notes=(*job.notes, *job.tiers.notes, *notes, *nested_note(len(everything)), *self._notes(planned)),
            attempts=number,
            unplanned=self.unplanned,
            standing=job.entry.standing,
            calibrated=job.hardware.measured,
            refusals=job.refusals,
            origins=origins_of(lowered.graphs),
            rank=compat.rank_here(),
        )
        report = with_plan(report, everything, self.options, job.hardware.name)
        needed = tier_bytes((each.plan for each in everything), job.tiers)
        above = max(report.above, _counted(report.timeline, job.device.type).peak)
        bound, beside = lowered.partitioner.bound, self._beside(report)
        return Attempt(bound, lowered.compiled, planned, needed, report, above, beside)

    def _tuned(self, found: Attempt, lowered: Lowered) -> Attempt:
        """The attempt once its kernels are compiled and tuned, with a note where some are not."""
        job = self.job

        def read() -> tuple[Any, ...]:
            return read_graphs(lowered.graphs, job.device.type, sizes=job.sizes)[:2]

        load(job, lowered.graphs)
        notes = tune(lowered.graphs, job.device, read)
        report = dataclasses.replace(found.report, notes=(*found.report.notes, *notes), stages=job.stages())
        return dataclasses.replace(found, report=report)

    def _truth(self, planned: Planned, graphs: list[Graph]) -> tuple[Timeline | None, tuple[str, ...]]:
        """What Inductor's wrappers allocate with the sizes of the launch; or None and a note."""
        device, retained, sizes = self.job.device.type, planned.facts.retained, self.job.sizes
        try:
            return read_step(graphs, device, retained=retained, sizes=sizes, dropped=planned.dropped), ()
        except NotReadable as problem:
            return None, (f"Inductor's wrapper could not be read, the peak is the graph sweep's: {problem}",)

    def _notes(self, planned: Planned) -> Iterator[str]:
        """What the report says of the figures."""
        if note := planned.outlining.note():
            yield note
        if planned.plan.kernel_ends:
            ends = len(planned.plan.kernel_ends)
            yield f"kernels end in {ends} more place{'s' * (ends > 1)}, so that no function holds more than the bound"
        if planned.dropped:
            positions = list(self.job.purpose.dropped)
            yield f"outputs {positions} are not held until the backward: their caller drops them"
        if self.job.sizes is not None:
            sizes = ", ".join(map(str, self.job.entry.sizes))
            yield f"planned for sizes up to {sizes}; smaller ones take less"
        if self.job.device.type == "cpu":
            yield "the baseline counts the tensors that Python can see; the CPU has no allocator statistics"
        if refuses_cuda_graphs(self.options, self.job.device):
            yield "CUDA graphs are off: what they keep allocated is in no plan, and copies cannot be captured"
        yield from self.kernels.notes

    def _error(self, wanted: Bound, tried: list[Attempt], lowest: Lowest | None) -> Exception:
        """The error of a budget that no attempt kept. It names the lowest peak seen, whose bound the plan store keeps.

        Without a plan store it names the peak of the last attempt, or of the lowest and the one near it: every smaller
        budget ends in these, too, while a plan in between might not be found again. A GraphError where no plan lowers
        the peak and the budget is a share.
        """
        if self._saves_nothing(tried) and not self.options.strict:
            return GraphError(
                "no plan of this graph has a lower peak than Inductor's own partition, so no share of that can be kept"
            )
        ends = tried if self.options.cache else tried[-2 if tried[-1].bound.near else -1 :]
        best = min(ends, key=lambda attempt: attempt.reaches)
        above = best.above
        # What another plan holds beside what runs outside is not known, where that decides.
        by_peak = not (self.job.bound.between and best.beside)
        if by_peak and lowest is not None and lowest.above <= above:
            above = lowest.above
        elif by_peak and wanted.bytes is not None:
            record_of_lowest(self.job).write(Lowest(best.bound, above))
        held = self.job.outside + wanted.reserve
        limit = self._limit(wanted, best.planned)
        assert limit is not None  # without a bound no plan is refused
        return budget_error(
            best.report,
            best.planned,
            self.options,
            minimum=held + above + best.beside + SLACK,
            budget=held + limit,
            unfinished=self.job.purpose.tightest,
            entry=self.job.entry,
        )

    def _beside(self, report: Report) -> int:
        """Bytes above its own peak that are reached with what is sure to come before its backward."""
        envelope = Envelope.of(_counted(report.timeline, self.job.device.type))
        return self.job.bound.beside(envelope.peak, envelope.held)

    def _saves_nothing(self, tried: list[Attempt]) -> bool:
        """Whether the budget is a share of a peak that no plan lowers, though values may be recomputed.

        So it is for a residual addition behind a graph break, say. A share names no bound in bytes: the run goes on
        without a plan.
        """
        options = self.options
        if not isinstance(options.budget, float) or options.recompute is None or options.plan is not None:
            return False
        unplanned = tried[-1].planned.unplanned if self.unplanned is None else self.unplanned
        return min(attempt.above for attempt in tried) >= unplanned.peak

    def _limit(self, wanted: Bound, planned: Planned | None = None) -> int | None:
        """Bytes above the level of the entry that a step may reach; None for no bound.

        planned: the plan, which alone knows in bytes what a share of the sweep's peak is.
        """
        if wanted.fraction is not None:
            return None if planned is None else planned.bound
        if self.job.purpose.offer is not None:  # who chooses among the offers of a round keeps the budget
            return None
        exact = self.job.limit
        return wanted.above_baseline(0) if exact is None else exact

    def _share_of_unplanned(self, bound: Bound) -> Bound:
        """A fraction as bytes: of what the same graph allocates when plain Inductor lowers it.

        That costs a compilation, once for a graph. Where its wrapper cannot be read, the fraction is one of the sweep.
        """
        if self.unplanned is None:
            self.unplanned = unplanned_timeline(self.job)
        if self.unplanned is None or bound.fraction is None:
            return bound
        peak = self.unplanned.peak
        return Bound(bytes=int(bound.fraction * peak), reserve=bound.reserve, unplanned=peak)


def _counted(timeline: Timeline, device: str) -> Timeline:
    """A timeline as the device's allocator counts it, which a budget is held against: on CUDA in whole blocks."""
    if device != "cuda":
        return timeline
    if not caching_allocator.leaves_uncut(device):
        return timeline.in_multiples(caching_allocator.BLOCK)
    counted = timeline.in_blocks()
    return counted.above(int(caching_allocator.OTHERS_BLOCKS * counted.peak))
