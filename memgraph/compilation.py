"""One compilation: plan, lower, read the truth, and plan again where it breaks the budget.

attempt:  plan under (bound - margin) -> Inductor -> what its wrappers allocate -> at most the bound?
          yes: done.  no: margin grows by what was missed.  last attempt: the lowest peak there is, or BudgetError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
from typing import Any

import torch

from memgraph import compat, runtime
from memgraph.errors import BudgetError
from memgraph.facts import scratch
from memgraph.hardware import load
from memgraph.logits import before_autograd
from memgraph.lowered import inputs_of
from memgraph.measure import allocated_bytes
from memgraph.options import Options, parse_options
from memgraph.ordering import KeepOrder
from memgraph.outcome import Lowering, build_report, read_step
from memgraph.partitioner import Partitioner, source_fingerprint
from memgraph.planner.plan import Refusal, Timeline
from memgraph.planning import SPARE, Bound
from memgraph.progress import Progress
from memgraph.report import Report, record
from memgraph.store import Store
from memgraph.tiers import settings, tiers
from memgraph.wrapper import NotReadable

ATTEMPTS = 4
# Added to the smallest budget that an error names: the baseline of the next compilation may hold a few small tensors
# more (Dynamo keeps the random generator's state, 5,056 bytes, while a traceback of a failed compilation lives).
SLACK = 64 * 1024
# What "auto" leaves free: fragmentation, and what libraries allocate for themselves.
AUTO_MARGIN = 0.05


class Compilation:
    """Compiles one Dynamo graph for `options`; `run` returns what Dynamo calls instead of it."""

    def __init__(self, gm: Any, inputs: Any, options: Options) -> None:
        self.gm, self.inputs, self.options = gm, inputs, options
        self.notes: tuple[str, ...] = ()
        self.refusals: tuple[Refusal, ...] = ()
        if self._trains():  # an evaluation gets its logits
            self.gm, self.notes, self.refusals = before_autograd(gm, inputs, options.tile)
        self.device = _device(inputs)
        self.hardware = load(self.device)
        self.progress = Progress(options.progress)
        self.name = " ".join(part for part in (compat.compiled_function_name(), compat.compile_id()) if part)
        self.baseline = allocated_bytes(self.device)
        self.budget = self._budget()
        self.store = Store()
        self.unplanned: int | None = None  # what plain Inductor allocates above the baseline, where that was asked for
        self.tiers = tiers(options, self.hardware, device=self.device)
        self.kernels = scratch.for_compilation(self.budget, self.baseline, options.cache)

    def run(self) -> Any:
        """The compiled callable.  Raises BudgetError, VerifyError."""
        with scratch.looking_up(self.kernels):
            return self._run()

    def _run(self) -> Any:
        if not self._trains():
            return self._lower(None, Lowering(), cache=True)
        bound = self._bound()
        if bound.fraction is not None:
            bound = self._share_of_unplanned(bound)
        key = self._key(bound, self.options)
        known = self._known(key)
        start = time.perf_counter()
        if known is not None:
            bound = dataclasses.replace(bound, margin=known[0], last=known[1])
        for attempt in range(1, ATTEMPTS + 1):
            last = bound.last or attempt == ATTEMPTS
            bound = dataclasses.replace(bound, last=last)
            partitioner = Partitioner(self.options, self.hardware, bound, self.progress, self.name, self.tiers)
            lowering = Lowering()
            compiled = self._lower(partitioner, lowering, cache=self.options.cache)
            if not partitioner.planned:
                if known is not None:  # everything came from the caches: the report did too
                    report = dataclasses.replace(known[2], cached=True)
                    record(report)
                    return self._with_room(compiled, report)
                compiled = self._lower(partitioner, lowering, cache=False)
                if not partitioner.planned:
                    return compiled  # nothing was differentiated
            planned = partitioner.planned[-1]
            report, above = self._report(key, partitioner, lowering, attempt, time.perf_counter() - start)
            if planned.bound is None or above <= planned.bound:
                record(report)
                if self.options.cache:
                    self.store.put(key, {"margin": bound.margin, "last": last, "report": report.to_json()})
                return self._with_room(compiled, report)
            if last:
                break
            if planned.plan.peak > planned.bound - bound.margin:
                break  # the planner knows nothing smaller
            # Lowering is taken to miss the sweep of the next plan by as much as it missed this one's.
            target = planned.plan.peak - (above - planned.bound)
            margin = planned.bound - int(target / (1 - SPARE))
            bound = dataclasses.replace(bound, margin=max(margin, bound.margin + 1))
        minimum = self.baseline + bound.reserve + above + SLACK
        raise BudgetError(
            minimum=minimum,
            binding=planned.binding(),
            budget=self.baseline + bound.reserve + planned.bound,
            refusals=((refusal.what, refusal.reason) for refusal in report.refusals),
            unused=self.options.unused,
        )

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
        kept = self.store.get(key) if self.options.cache else None
        if isinstance(kept, dict) and isinstance(kept.get("unplanned"), int):
            self.unplanned = kept["unplanned"]
        else:
            name = f"{self.name}, unplanned"
            partitioner = Partitioner(plain, self.hardware, Bound(), self.progress, name)
            for cache in (self.options.cache, False):  # a warm cache answers without the partitioner
                lowering = Lowering()
                self._lower(partitioner, lowering, cache=cache)
                if partitioner.planned:
                    break
            if not partitioner.planned:
                return bound  # nothing was differentiated
            try:
                self.unplanned = read_step(partitioner, lowering, self.device.type).peak
            except NotReadable:
                return bound
            if self.options.cache:
                self.store.put(key, {"unplanned": self.unplanned})
        return Bound(bytes=int(bound.fraction * self.unplanned), reserve=bound.reserve, unplanned=self.unplanned)

    def _known(self, key: str) -> tuple[int, bool, Report] | None:
        """Margin, last and report of the attempt that was accepted before for this key, where all of that is kept."""
        kept = self.store.get(key) if self.options.cache else None
        try:
            return None if kept is None else (int(kept["margin"]), bool(kept["last"]), Report.from_json(kept["report"]))
        except (KeyError, TypeError, ValueError):
            return None  # written by another version, or damaged: as good as none

    def _lower(self, partitioner: Partitioner | None, lowering: Lowering, *, cache: bool) -> Any:
        patches = dict(compat.mode_options(self.options.mode)) if self.options.mode else {}
        patches |= self.options.inductor
        if partitioner is not None:
            patches["custom_partitioner_fn"] = partitioner
            order = KeepOrder(lambda backward: _is_ours(partitioner, backward), partitioner.uuid())
            patches["_pre_fusion_custom_pass"] = order
        if not cache:
            patches["force_disable_caches"] = True
        stock = compat.inner_compile()

        def inner(gm: Any, inputs: Any, **kwargs: Any) -> Any:
            phase = "backward" if kwargs.get("is_backward") else "forward"
            given = inputs_of(gm)
            if self.options.retain_graph:
                compat.donate_nothing()
            configured = contextlib.nullcontext()
            if partitioner is not None and _is_ours(partitioner, phase == "backward"):
                configured = compat.lowering_settings(bool(partitioner.planned[-1].plan.transfers))
            compat.lower_transfers()
            compat.lower_shards()
            with configured, self.progress.stage(f"Inductor {phase}", graph=self.name):
                lowered = stock(gm, inputs, **kwargs)
            lowering.wrappers.append((phase, given, getattr(lowered, "source_code", None)))
            return lowered

        retain = self.options.retain_graph
        return compat.compile_graph(compat.copy_graph(self.gm), self.inputs, inner, patches, retain_graph=retain)

    def _with_room(self, compiled: Any, report: Report) -> Any:
        """The compiled callable, with the tiers' room for one step taken before it first runs, until it is dropped.

        Raises OffloadError where a tier has less room than it said.
        """
        told = settings(self.options, self.tiers)
        taken = []
        for tier in self.tiers.tiers:
            size = sum(tier.room(decision.bytes) for decision in report.decisions if decision.tier == tier.name)
            if size:
                host, nvme = (size, 0) if tier.name == "host" else (0, size)
                taken.append(runtime.prepare(self.device, told[tier.name], host, nvme))
        return holding(compiled, taken) if taken else compiled

    def _trains(self) -> bool:
        tensors = [t for t in self.inputs if isinstance(t, torch.Tensor)]
        tensors += [*self.gm.parameters(), *self.gm.buffers()]
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

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
            usable = compat.free_memory() + self.baseline
        # Rounded, so that the caches are not asked for another configuration whenever a neighbour breathes.
        step = max(1, total // 64)
        return int(usable * (1 - AUTO_MARGIN)) // step * step

    def _bound(self) -> Bound:
        reserve = self.options.held_back
        if isinstance(self.options.budget, float):
            return Bound(fraction=self.options.budget, reserve=reserve)
        return Bound(None if self.budget is None else self.budget - self.baseline, None, reserve)

    def _key(self, bound: Bound, options: Options) -> str:
        """The name of this graph under this configuration, for the plan store."""
        digest = hashlib.sha256()
        for part in (
            compat.graph_text(self.gm, self.inputs),
            options.key(),
            repr(bound),
            self.hardware.to_json(),
            source_fingerprint(),
            torch.__version__,
            str(torch.is_autocast_enabled()),
            scratch.fingerprint(),
            repr(self.tiers),
        ):
            digest.update(part.encode() + b"\0")
        digest.update(compat.config_fingerprint())
        return digest.hexdigest()

    def _report(
        self, key: str, partitioner: Partitioner, lowering: Lowering, attempts: int, seconds: float
    ) -> tuple[Report, int]:
        """The report of one attempt, and the peak above the baseline as lowered."""
        planned = partitioner.planned[-1]
        notes = [*self.notes, *self.tiers.notes]
        try:
            truth: Timeline | None = read_step(partitioner, lowering, self.device.type)
        except NotReadable as problem:
            truth = None
            notes.append(f"Inductor's wrapper could not be read, the peak is the graph sweep's: {problem}")
        if len(partitioner.planned) > 1:
            notes.append(f"{len(partitioner.planned) - 1} nested regions were planned apart; this is the outer graph")
        if self.device.type == "cpu":
            notes.append("the baseline counts the tensors that Python can see; the CPU has no allocator statistics")
        notes += self.kernels.notes
        report = build_report(
            planned,
            self.options,
            truth,
            key=key,
            graph=self.name,
            device=str(self.device),
            baseline=self.baseline,
            budget=self.budget,
            stages=(*self.progress.stages, ("all", seconds)),
            notes=tuple(notes),
            attempts=attempts,
            unplanned=self.unplanned,
            refusals=self.refusals,
        )
        return report, report.predicted_peak - self.baseline


def _is_ours(partitioner: Partitioner, backward: bool) -> bool:
    """Whether the plan orders a graph: a planned backward, a forward that values are copied out of, any with tiles."""
    plan = partitioner.planned[-1].plan
    if any(decision.action == "tile" for decision in plan.decisions):
        return True
    return not plan.stock and (backward or bool(plan.transfers))


def holding(compiled: Any, kept: list[Any]) -> Any:
    """The same callable, which keeps some objects alive for as long as it lives itself."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        return compiled(*args)

    call._kept = kept
    if getattr(compiled, "_boxed_call", False):
        call._boxed_call = True
    return call


def _device(inputs: Any) -> torch.device:
    """The accelerator among the inputs' devices, else the CPU."""
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor)}
    return next((device for device in sorted(devices, key=str) if device.type == "cuda"), torch.device("cpu"))
