"""One compilation: by a plan that keeps the budget, or, where there can be none, as Inductor has it.

evaluation                       -> Inductor, nothing is planned
training                         -> attempts.py: plan, lower, read the truth, plan again
    the budget cannot be kept    -> BudgetError: the user must know
    anything else goes wrong     -> Inductor, with a PlanWarning and a note in the report; `strict` raises instead
"""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from memgraph.backend.attempts import Attempts
from memgraph.backend.budget import trains
from memgraph.backend.inductor import Graph, Job, key_of, lower, read_step
from memgraph.backend.launching import Launching
from memgraph.backend.options import Options
from memgraph.backend.outcome import without_plan
from memgraph.backend.progress import Progress
from memgraph.backend.rules import warn_of_unmatched
from memgraph.base import compat
from memgraph.base.errors import (
    BudgetError,
    GraphError,
    MemgraphError,
    OffloadError,
    OptionsError,
    PlanError,
    PlanWarning,
    RanksError,
)
from memgraph.base.fingerprint import source_folders
from memgraph.base.sizes import format_size
from memgraph.base.store import Store
from memgraph.facts import kernel_scratch
from memgraph.lower.wrapper import NotReadable
from memgraph.machine.measure import allocated_bytes
from memgraph.planner.decisions import Refusal, Timeline
from memgraph.reporting.log import record
from memgraph.reporting.report import Report

# Raised without `strict`, too: a run must not go on after them as if nothing had been asked for.
LOUD = (OptionsError, BudgetError, OffloadError, PlanError, RanksError)

_logger = logging.getLogger(__name__)


class Compilation:
    """Compiles one Dynamo graph for `options`; `run` returns what Dynamo calls instead of it.

    attempts: what plans a graph that is trained.
    """

    def __init__(self, gm: Any, inputs: Any, options: Options, attempts: Callable[..., Attempts] = Attempts) -> None:
        name = " ".join(part for part in (compat.compiled_function_name(), compat.compile_id()) if part)
        self.job = Job(gm, inputs, options, _device(inputs), Progress(options.progress), name)
        self.options, self.attempts = options, attempts

    def run(self) -> Any:
        """The compiled callable.

        Raises the errors of LOUD, a PlanWarning where the user has warnings raised, and what plain Inductor raises for
        the graph; with `strict` also whatever stands in the way of a plan, VerifyError for one.
        """
        if not trains(self.job.gm, self.job.inputs):
            return lower(self.job, None, cache=self.options.cache)[0]
        # Outside of the try: a warning that the user has raised is no reason to compile without a plan.
        warn_of_unmatched(self.job.gm, self.options.rules, self.job.name)
        start = time.perf_counter()
        try:
            refuse_several_gpus(self.job.inputs)
            return Launching(self.job, self.attempts).first()
        except (*LOUD, PlanWarning):  # a warning too, where the user has warnings raised
            raise
        except Exception as error:
            # Where Dynamo traces again, what is compiled without a plan meanwhile would have the wrong numbers.
            if self.options.strict or compat.restarts_dynamo(error):
                raise
            _logger.debug("%s is compiled without a plan", self.job.name, exc_info=True)
            problem = error
        # Out of the handler: where Inductor cannot compile the graph either, its error is the user's, with no other
        # error behind it.
        return self._without_plan(problem, start)

    def _without_plan(self, problem: Exception, start: float) -> Any:
        """The graph as Inductor has it.  Raises what Inductor raises."""
        reason = _reason(problem)
        baseline = allocated_bytes(self.job.device)
        compiled, graphs = lower(self.job, None, cache=self.options.cache)
        report = self._report(graphs, reason, baseline, start)
        if report is not None:
            record(report)
        promises = self._promises(report)
        if promises or report is None or not isinstance(problem, GraphError):
            more = "; ".join(promises)
            warnings.warn(
                f"{self.job.name} is compiled as Inductor has it, without a plan: {reason.rstrip('.')}."
                + (f" Not promised now: {more}." if more else "")
                + " (Option 'strict': True raises the error instead.)",
                PlanWarning,
                stacklevel=2,
            )
        return compiled

    def _report(self, graphs: list[Graph], reason: str, baseline: int, start: float) -> Report | None:
        """The report of the graph as Inductor has it; None where its peak is not known."""
        job, options = self.job, self.options
        budget = options.budget if isinstance(options.budget, int) else None
        kernels = kernel_scratch.for_compilation(budget, baseline, options.cache, job.device)
        with kernel_scratch.looking_up(kernels):
            timeline = self._timeline(graphs)
        if timeline is None:
            return None
        return without_plan(
            options,
            timeline,
            baseline=baseline,
            key="",
            graph=job.name,
            device=str(job.device),
            refusals=(Refusal("plan", reason),),
            stages=(*job.progress.stages, ("all", time.perf_counter() - start)),
            notes=kernels.notes,
            rank=compat.rank_here(),
        )

    def _timeline(self, graphs: list[Graph]) -> Timeline | None:
        """What the graph allocates without a plan, or None where that is not known."""
        job, options, store = self.job, self.options, Store()
        try:
            key = key_of(job, options.inductor_json, f"{options.mode} {options.retain_graph} without a plan")
            if not graphs:  # all of it came from a warm cache
                if (kept := store.get(key)) is not None:
                    return Timeline.from_rows(kept["events"])
                graphs = lower(job, None, cache=False, loaded=False)[1]
            found = read_step(graphs, job.device.type, retained=options.retain_graph)
            if options.cache:
                store.put(key, {"events": found.rows()})
            return found
        except NotReadable:
            return None
        except Exception:  # what kept the graph from being planned may be here
            _logger.warning("the peak of %s is not known", job.name, exc_info=True)
            return None

    def _promises(self, report: Report | None) -> list[str]:
        """What the options ask for and a graph without a plan does not promise."""
        options, found = self.options, []
        if options.budget is not None:
            peak = "its peak is not known" if report is None else f"it reaches {format_size(report.predicted_peak)}"
            found.append(f"the budget of {options.budget!r} ({peak}, baseline included)")
        found += [f"option {name!r}" for name in ("rules", "offload", "tile") if getattr(options, name)]
        return found


def _reason(problem: Exception) -> str:
    """Why there is no plan, for a user: what the graph has, or where memgraph is at fault."""
    if isinstance(problem, MemgraphError) and not isinstance(problem, AssertionError):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if any(Path(frame.filename).is_relative_to(f) for f in source_folders())]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"a fault of memgraph, please report it: {type(problem).__name__}{place}: {str(problem)[:2000]}"


def refuse_several_gpus(inputs: Any) -> None:
    """Raise GraphError for a graph on several GPUs: a budget bounds the memory of one."""
    found = {str(t.device) for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
    if len(found) > 1:
        raise GraphError(f"its tensors lie on several GPUs ({', '.join(sorted(found))}), and a budget is that of one")


def _device(inputs: Any) -> torch.device:
    """The accelerator among the inputs' devices, else the CPU."""
    devices = {t.device for t in inputs if isinstance(t, torch.Tensor)}
    return next((device for device in sorted(devices, key=str) if device.type == "cuda"), torch.device("cpu"))
