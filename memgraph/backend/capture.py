"""A step captured without a device: Dynamo traces it, its tensors become fake ones on the device that it shall run on.

    fn(*args) ── Dynamo ──> graph, on the target device ── a task: partition, plan ──> what the task found

No compilation succeeds: where Inductor would begin to lower, an exception unwinds it all. So Dynamo keeps nothing of
it: what was compiled before stays valid, what is compiled later starts afresh, and nobody has to call
torch.compiler.reset.

Parameters and inputs may be real, fake or on the meta device. For another device than theirs the captured
graph is given fake tensors on that device before it is differentiated. Fake CUDA tensors need a torch that
was built with CUDA (but no GPU): the autograd engine of a CPU-only build aborts the process on them (torch
2.13). There the graph is that of the CPU, priced and counted with the figures of the device that was named.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import fx

from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.budget import trains
from memgraph.backend.hook import Partitioner
from memgraph.backend.options import Options
from memgraph.backend.progress import Progress
from memgraph.backend.rules import warn_of_unmatched
from memgraph.base import compat
from memgraph.base.errors import GraphError, MemgraphError, OptionsError
from memgraph.base.garbage import without_collections
from memgraph.base.stack import with_room
from memgraph.facts import kernel_scratch
from memgraph.machine.hardware import Hardware, load, named
from memgraph.passes.graphs import Captured
from memgraph.planner.decisions import Refusal
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.future_optimizer import Optimizer, forecast_of

Found = TypeVar("Found")


class _Unwound(MemgraphError):
    """Ends a compilation that has shown what it was begun for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What a step is captured for."""

    options: Options
    hardware: Hardware | None = None
    """The figures to plan with; None for those of the device."""
    device: torch.device | None = None
    """Where the step shall run; None for where its tensors are."""
    optimizer: Optimizer | None = None
    """What will own the parameters; None where that is not known."""

    @classmethod
    def of(
        cls,
        options: Options,
        hardware: Hardware | str | None,
        device: torch.device | str | None,
        optimizer: Optimizer | None = None,
    ) -> Target:
        """The target that a user names.  Raises OptionsError for a device or hardware that nobody knows."""
        figures = named(hardware) if isinstance(hardware, str) else hardware
        if device is None and figures is not None:
            device = figures.device
        known = None if device is None else _known(device)
        return cls(options=options, hardware=figures, device=known, optimizer=optimizer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A captured step, before it is differentiated."""

    gm: Any
    """Dynamo's graph."""
    inputs: Sequence[Any]
    """Fake tensors on the device that the graph is traced for."""
    name: str
    options: Options
    hardware: Hardware
    device: torch.device
    """Where it shall run."""
    baseline: int
    """Bytes of parameters, buffers and inputs."""
    parameters: tuple[torch.Tensor, ...]
    """Those that are trained."""
    frozen: int
    """Bytes of the parameters that are not trained."""
    optimizer: OptimizerForecast | None
    """What the optimizer will allocate."""
    progress: Progress
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    start: float
    """When its capture ended, by `time.perf_counter`."""

    @property
    def to_come(self) -> int:
        """Bytes that the run allocates later and keeps: the state of the optimizer."""
        return 0 if self.optimizer is None else self.optimizer.state_to_come

    @property
    def standing(self) -> tuple[tuple[str, int], ...]:
        """What the baseline is made of: a kind and its bytes."""
        weights = sum_of_storages(self.parameters) + self.frozen
        return ("parameters", weights), ("inputs and buffers", self.baseline - weights)

    @property
    def gradients(self) -> int:
        """Bytes of the gradients of all trained parameters."""
        return sum_of_storages(self.parameters)

    def partition(self, partitioner: Partitioner, then: Callable[[], None] = lambda: None) -> tuple[str, ...]:
        """Differentiate the graph and hand its joint graph to a partitioner; returns notes on kernels.

        then: called when all partitioning is done, while the compilation still stands.
        Raises MemgraphError where there is no backward.
        """
        settings = compat.mode_options(self.options.mode) if self.options.mode else {}
        settings = {
            **settings,
            **self.options.inductor,
            "custom_partitioner_fn": partitioner,
            "force_disable_caches": True,
        }
        reached = False

        def lowered(*args: Any, **kwargs: Any) -> Any:
            """Stands for Inductor's compiler of one graph: all partitioning is done when it is first called."""
            nonlocal reached
            reached = partitioner.called
            if reached:
                then()
            raise _Unwound

        kernels = kernel_scratch.for_dry_run(self.options.cache, self.device)
        with contextlib.suppress(_Unwound), kernel_scratch.looking_up(kernels):
            compat.compile_graph(self.gm, self.inputs, lowered, settings, retain_graph=self.options.retain_graph)
        if not reached:
            raise MemgraphError("there is nothing to plan: the first graph of this function has no backward")
        return kernels.notes


def captured(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
    task: Callable[[Step], Found],
) -> Found:
    """What a task finds out about the step `fn(*args, **kwargs)`; nothing runs or is compiled.

    Raises MemgraphError where there is nothing to plan, what the task raises, and what Dynamo raises where it cannot
    trace `fn`.
    """
    capture = _Capture(fn, target, task)
    token = _current.set(capture)
    try:
        with compat.only_tracing(), without_collections():
            with_room(torch.compile(compat.uncompiled(fn), backend=_backend), *args, **kwargs)
    except Exception:
        if not capture.found:  # else it is what ended the compilation, however Dynamo dressed it
            raise
    finally:
        _current.reset(token)
    if not capture.found:
        raise MemgraphError("torch.compile captured no graph of this function, so there is nothing to plan")
    return capture.found[0]


def _known(device: torch.device | str) -> torch.device:
    with contextlib.suppress(RuntimeError):  # torch's, for a name that is no device's
        if torch.device(device).type in ("cuda", "cpu"):
            return torch.device(device)
    raise OptionsError(f"device {str(device)!r} cannot be planned for; allowed: cuda, cpu, None")


class _Capture(Generic[Found]):
    """One call of `captured`: the backend of its compilation, and what came of it."""

    def __init__(self, fn: Any, target: Target, task: Callable[[Step], Found]) -> None:
        self.fn, self.target, self.task = fn, target, task
        self.name = getattr(fn, "__qualname__", type(fn).__name__)
        self.notes: list[str] = []
        self.found: list[Found] = []

    def run(self, gm: Any, inputs: Sequence[Any]) -> None:
        """Hand the graph to the task. Always raises: an error, or what ends the compilation once the task is done."""
        start = time.perf_counter()
        if not trains(gm, inputs):
            raise MemgraphError(
                "there is nothing to plan: the first graph of this function has no input or parameter that "
                "requires a gradient"
            )
        target, options = self.target, self.target.options
        tensors = [*(item for item in inputs if isinstance(item, torch.Tensor)), *gm.parameters(), *gm.buffers()]
        warn_of_unmatched(gm, options.rules, self.name)
        device = self._device({tensor.device.type for tensor in tensors})
        rewritten = before_autograd(Captured(gm, inputs), options.tile, self._traced_for(device))
        gm = rewritten.graphs.module
        self.notes += rewritten.notes
        if reason := compat.graph_break_reason(gm):
            where = reason.splitlines()[0]
            self.notes.append(f"the function makes several graphs, this is the first; it ends at: {where}")
        everything = [*tensors, *_tensors_of(self.fn)]
        parameters = [tensor for tensor in everything if isinstance(tensor, torch.nn.Parameter)]
        trained = tuple({compat.storage_id(p): p for p in parameters if p.requires_grad}.values())
        forecast = None if target.optimizer is None else forecast_of(target.optimizer, trained, device)
        step = Step(
            inputs=self._moved(gm, inputs, device),
            gm=gm,
            name=self.name,
            options=options,
            hardware=target.hardware or load(device),
            device=device,
            baseline=sum_of_storages(everything),
            parameters=trained,
            frozen=sum_of_storages(parameters) - sum_of_storages(trained),
            optimizer=forecast,
            progress=Progress(options.progress),
            notes=tuple(self.notes),
            refusals=rewritten.refusals,
            start=start,
        )
        self.found.append(self.task(step))
        raise compat.through_dynamo(_Unwound())

    def _device(self, kinds: set[str]) -> torch.device:
        """Where the step is to run.  kinds: of the devices of the tensors.

        Raises GraphError where torch cannot trace for that device.
        """
        device = self.target.device
        if device is None and "meta" in kinds and "cuda" not in kinds:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        elif device is None:
            device = torch.device("cuda" if "cuda" in kinds else "cpu")
        if device.type == "cuda" and not compat.traces_cuda():
            raise GraphError(
                "this build of torch cannot trace a backward for CUDA on a machine without a GPU (autograd asks "
                "the device for a stream). It can on a simulated GPU: python -m memgraph.simulator --card H100 -- "
                "script.py; and torch's CPU build can: pip install torch --index-url "
                "https://download.pytorch.org/whl/cpu"
            )
        return device

    @staticmethod
    def _traced_for(device: torch.device) -> torch.device:
        """The device whose graph is traced for a step on `device`: the CPU's, where torch was built without CUDA."""
        return torch.device("cpu") if device.type == "cuda" and not torch.backends.cuda.is_built() else device

    def _moved(self, gm: Any, inputs: Sequence[Any], target: torch.device) -> Sequence[Any]:
        """The graph's inputs on the target, where fake tensors can be made on it."""
        origins = {"meta", "cpu", "cuda"} - {target.type}
        if self._traced_for(target) != target:
            self.notes.append(
                "this torch was built without CUDA, so the graph is the CPU's: its attention kernels "
                "and their scratch memory may differ from those on CUDA"
            )
            target, origins = self._traced_for(target), {"meta", "cuda"}
            _count_as_floats(gm)
        if not any(isinstance(t, torch.Tensor) and t.device.type in origins for t in inputs):
            return inputs
        try:
            return compat.rehome(gm, inputs, frozenset(origins), target)
        except TypeError as problem:
            raise MemgraphError(f"cannot be planned for {target}: {problem}") from problem


def _count_as_floats(gm: Any) -> None:
    """Make histograms of integers count floats instead, in place: the CPU has no kernel for integers.

    The counts keep their dtype, and so their bytes. Mixtures of experts count int32 in this way on a GPU.
    """
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        graph = module.graph
        for node in list(graph.nodes):
            given = node.args[0] if node.target in (torch.histc, "histc") and node.args else None
            seen = given.meta.get("example_value") if isinstance(given, fx.Node) else None
            if not isinstance(seen, torch.Tensor) or seen.dtype.is_floating_point:
                continue
            with graph.inserting_before(node):
                floats = graph.call_method("float", (given,))
            with graph.inserting_after(node):
                counts = graph.call_method("to", (node, seen.dtype))
            node.replace_all_uses_with(counts, delete_user_cb=lambda user, counts=counts: user is not counts)
            node.replace_input_with(given, floats)
            for made in (floats, counts):
                made.meta |= {name: node.meta[name] for name in ("stack_trace", "nn_module_stack") if name in node.meta}


# One backend object for all calls: Dynamo keeps every backend that it has ever seen.
_current: contextvars.ContextVar[_Capture] = contextvars.ContextVar("memgraph.dry")


def _backend(gm: Any, inputs: Sequence[Any]) -> Any:
    try:
        _current.get().run(gm, inputs)
    except MemgraphError as error:
        raise compat.through_dynamo(error) from error.__cause__


def _tensors_of(fn: Any) -> list[torch.Tensor]:
    """All parameters and buffers of the module that `fn` is, or is a method of, used or not."""
    owner = compat.uncompiled(fn)
    owner = getattr(owner, "__self__", owner)
    return [*owner.parameters(), *owner.buffers()] if isinstance(owner, torch.nn.Module) else []


def sum_of_storages(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each once; meta and fake tensors count as if they were real."""
    return sum({compat.storage_id(t): t.untyped_storage().nbytes() for t in tensors}.values())
