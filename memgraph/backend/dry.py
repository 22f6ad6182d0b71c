"""Plan without a device: a graph is captured and planned as in a training run; nothing runs or is compiled.

Dynamo traces the function, AOTAutograd and Inductor's joint passes make the joint graph, it is planned, cut
and verified, and there it ends: where Inductor would begin to lower, an exception unwinds it all. Since no
compilation succeeds, Dynamo keeps nothing of it: what was compiled before stays valid, what is compiled
later starts afresh, and nobody has to call torch._dynamo.reset.

Parameters and inputs may be real, fake or on the meta device. For another device than theirs the captured
graph is given fake tensors on that device before it is differentiated. Fake CUDA tensors need a torch that
was built with CUDA (but no GPU): the autograd engine of a CPU-only build aborts the process on them (torch
2.13). There the graph is that of the CPU, priced and counted with the figures of the device that was named.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.budget import bound_of, budget_of, nested_note, trains
from memgraph.backend.destinations import tiers
from memgraph.backend.hook import Partitioner
from memgraph.backend.joint_graph import Planned
from memgraph.backend.options import Options, parse_options
from memgraph.backend.outcome import budget_error, build_report
from memgraph.backend.progress import Progress
from memgraph.backend.rules import warn_of_unmatched
from memgraph.base import compat
from memgraph.base.errors import GraphError, MemgraphError, OptionsError
from memgraph.facts import kernel_scratch
from memgraph.machine.hardware import Hardware, load, named
from memgraph.passes.graphs import Captured
from memgraph.planner.decisions import Refusal
from memgraph.reporting.report import Report


class _Captured(MemgraphError):
    """Unwinds a compilation that has been planned."""


def plan(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    hardware: Hardware | str | None = None,
    **kwargs: Any,
) -> Report:
    """Return what the memgraph backend with these options would plan at the call `fn(*args, **kwargs)`.

    The peak is that of the graph sweep: what Inductor allocates is known only once it has lowered the graph.
    The baseline is the bytes of parameters, buffers and inputs. Where Dynamo makes several graphs of `fn`,
    the first one is planned, and a note says so.

    device: where the step shall run; by default that of `hardware`, else where the tensors are; for meta
    tensors this machine's GPU, or its CPU where there is none. hardware: the figures to plan with: a
    Hardware, the name of a device whose figures are built in ("H100"), or None for those of `device`. A
    budget of "auto" is the capacity in these figures, less a margin.

    Raises OptionsError; BudgetError where the budget cannot be reached; MemgraphError where there is nothing
    to plan; and what Dynamo raises where it cannot trace `fn`.
    """
    capture = _Capture(fn, parse_options(options), _figures(hardware), device)
    token = _current.set(capture)
    try:
        with compat.only_tracing():
            torch.compile(compat.uncompiled(fn), backend=_backend)(*args, **kwargs)
    except Exception:
        if capture.report is None:  # else it is what ended the compilation, however Dynamo dressed it
            raise
    finally:
        _current.reset(token)
    if capture.report is None:
        raise MemgraphError("torch.compile captured no graph of this function, so there is nothing to plan")
    report = capture.report
    if report.budget is not None and report.predicted_peak > report.budget - report.reserve:
        minimum = report.predicted_peak + report.reserve
        assert capture.planned is not None  # the report tells of it
        raise budget_error(
            report, capture.planned, capture.options, minimum=minimum, budget=report.budget, estimated=True
        )
    return report


def _figures(hardware: Hardware | str | None) -> Hardware | None:
    return named(hardware) if isinstance(hardware, str) else hardware


def _known(device: torch.device | str) -> torch.device:
    with contextlib.suppress(RuntimeError):  # torch's, for a name that is no device's
        if torch.device(device).type in ("cuda", "cpu"):
            return torch.device(device)
    raise OptionsError(f"device {str(device)!r} cannot be planned for; allowed: cuda, cpu, None")


class _Capture:
    """One call of `plan`: the backend of its compilation, and what came of it."""

    def __init__(self, fn: Any, options: Options, hardware: Hardware | None, device: torch.device | str | None) -> None:
        self.fn, self.options, self.hardware = fn, options, hardware
        if device is None and hardware is not None:
            device = hardware.device
        self.device = None if device is None else _known(device)
        self.name = getattr(fn, "__qualname__", type(fn).__name__)
        self.progress = Progress(options.progress)
        self.notes: list[str] = []
        self.refusals: tuple[Refusal, ...] = ()
        self.report: Report | None = None
        self.planned: Planned | None = None

    def run(self, gm: Any, inputs: Sequence[Any]) -> None:
        """Plan the graph; always raises."""
        start = time.perf_counter()
        if not trains(gm, inputs):
            raise MemgraphError(
                "there is nothing to plan: the first graph of this function has no input or parameter that "
                "requires a gradient"
            )
        tensors = [*(item for item in inputs if isinstance(item, torch.Tensor)), *gm.parameters(), *gm.buffers()]
        gm = self._ready_for_tiles(gm, inputs)
        target = self._target({tensor.device.type for tensor in tensors})
        hardware = self.hardware or load(target)
        baseline = _bytes([*tensors, *_tensors_of(self.fn)])
        inputs = self._moved(gm, inputs, target)
        found = tiers(self.options, hardware, here=False)
        self.notes += found.notes
        bound = bound_of(self.options, budget_of(hardware, self.options), baseline, target)
        partitioner = Partitioner(self.options, hardware, bound, self.progress, self.name, found)
        kernels = self._partition(gm, inputs, partitioner)
        self.planned = partitioner.planned[-1]
        self.report = build_report(
            self.planned,
            self.options,
            None,
            key=f"dry-{partitioner.uuid()[:16]}",
            graph=self.name,
            device=target,
            baseline=baseline,
            budget=None if bound.bytes is None else baseline + bound.bytes,
            stages=(*self.progress.stages, ("all", time.perf_counter() - start)),
            notes=(
                f"planned with the figures of {hardware.name}; nothing was compiled or run",
                *self.notes,
                *nested_note(len(partitioner.planned)),
                *kernels.notes,
            ),
            attempts=1,
            calibrated=hardware.measured,
            refusals=self.refusals,
        )
        raise compat.through_dynamo(_Captured())

    def _ready_for_tiles(self, gm: Any, inputs: Sequence[Any]) -> Any:
        """The graph as the options for tiles want it; says what is known of it before it is planned."""
        warn_of_unmatched(gm, self.options.rules, self.name)
        rewritten = before_autograd(Captured(gm, inputs), self.options.tile)
        gm, self.refusals = rewritten.graphs.module, rewritten.refusals
        self.notes += rewritten.notes
        if reason := compat.graph_break_reason(gm):
            where = reason.splitlines()[0]
            self.notes.append(f"the function makes several graphs, this is the first; it ends at: {where}")
        return gm

    def _partition(self, gm: Any, inputs: Sequence[Any], partitioner: Partitioner) -> Any:
        """Trace, differentiate and plan the graph; returns the kernels that were looked up.

        Raises MemgraphError where there is no backward.
        """
        settings = compat.mode_options(self.options.mode) if self.options.mode else {}
        settings = {
            **settings,
            **self.options.inductor,
            "custom_partitioner_fn": partitioner,
            "force_disable_caches": True,
        }
        kernels = kernel_scratch.for_dry_run(self.options.cache)
        with contextlib.suppress(_Captured), kernel_scratch.looking_up(kernels):
            compat.compile_graph(gm, inputs, _stop, settings, retain_graph=self.options.retain_graph)
        if not partitioner.planned:
            raise MemgraphError("there is nothing to plan: the first graph of this function has no backward")
        return kernels

    def _target(self, kinds: set[str]) -> torch.device:
        """Where the step is to run.  kinds: of the devices of the tensors.

        Raises GraphError where torch cannot trace for that device.
        """
        target = self.device
        if target is None and "meta" in kinds and "cuda" not in kinds:
            target = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        elif target is None:
            target = torch.device("cuda" if "cuda" in kinds else "cpu")
        if target.type == "cuda" and not compat.traces_cuda():
            raise GraphError(
                "this build of torch cannot trace a backward for CUDA on a machine without a GPU (autograd asks "
                "the device for a stream); torch's CPU build can: pip install torch --index-url "
                "https://download.pytorch.org/whl/cpu"
            )
        return target

    def _moved(self, gm: Any, inputs: Sequence[Any], target: torch.device) -> Sequence[Any]:
        """The graph's inputs on the target, where fake tensors can be made on it."""
        origins = {"meta", "cpu", "cuda"} - {target.type}
        if target.type == "cuda" and not torch.backends.cuda.is_built():
            self.notes.append(
                "this torch was built without CUDA, so the graph is the CPU's: its attention kernels "
                "and their scratch memory may differ from those on CUDA"
            )
            target, origins = torch.device("cpu"), {"meta", "cuda"}
        if not any(isinstance(t, torch.Tensor) and t.device.type in origins for t in inputs):
            return inputs
        try:
            return compat.rehome(gm, inputs, frozenset(origins), target)
        except TypeError as problem:
            raise MemgraphError(f"cannot be planned for {target}: {problem}") from problem


# One backend object for all calls: Dynamo keeps every backend that it has ever seen.
_current: contextvars.ContextVar[_Capture] = contextvars.ContextVar("memgraph.dry")


def _backend(gm: Any, inputs: Sequence[Any]) -> Any:
    try:
        _current.get().run(gm, inputs)
    except MemgraphError as error:
        raise compat.through_dynamo(error) from error.__cause__


def _stop(*args: Any, **kwargs: Any) -> Any:
    """Stands for Inductor's compiler of one graph: all partitioning is done when it is first called."""
    raise _Captured


def _tensors_of(fn: Any) -> list[torch.Tensor]:
    """All parameters and buffers of the module that `fn` is, or is a method of, used or not."""
    owner = compat.uncompiled(fn)
    owner = getattr(owner, "__self__", owner)
    return [*owner.parameters(), *owner.buffers()] if isinstance(owner, torch.nn.Module) else []


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each once; meta and fake tensors count as if they were real."""
    return sum({compat.storage_id(t): t.untyped_storage().nbytes() for t in tensors}.values())


__all__ = ["plan"]
