"""How memgraph calls Inductor: a Dynamo graph in, a compiled callable out, and the graphs that were lowered."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.backend.hook import Partitioner
from memgraph.backend.options import Options
from memgraph.backend.progress import Progress
from memgraph.base import compat
from memgraph.base.fingerprint import source_fingerprint
from memgraph.base.garbage import without_collections
from memgraph.facts import kernel_scratch
from memgraph.lower.order import KeepOrder
from memgraph.lower.timeline import (
    Lowered,
    inputs_of,
    output_names,
    placeholders,
    read_wrapper,
    saved_by_name,
    saved_inputs,
    step_timeline,
    without_work,
)
from memgraph.lower.wrapper import NotReadable
from memgraph.planner.decisions import Plan, Timeline

# Graphs of Dynamo with so many nodes take a second or more to trace: all but toys, a tiny ViT of two layers has 107.
LONG_TRACE = 100

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """One Dynamo graph to compile."""

    gm: fx.GraphModule
    inputs: Any
    """The example inputs that Dynamo gives."""
    options: Options
    device: torch.device
    """The device whose memory is bounded."""
    progress: Progress
    name: str
    """The function's name and Dynamo's number, for messages and the report."""
    compile_one: Callable[[], Any] = dataclasses.field(default=compat.inner_compile, kw_only=True)
    """Returns what compiles one graph of the split, as `compile_fx` calls it."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """One graph that Inductor lowered."""

    phase: str
    """"forward" or "backward"."""
    inputs: tuple[tuple[str, Any], ...]
    """Name and fake value of each input."""
    outputs: tuple[str, ...]
    """The names of its outputs."""
    source: str | None
    """Its wrapper; None where there is no Python wrapper."""
    kernels: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Its Triton kernels, by name."""
    origins: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)
    """By the name of a buffer of the wrapper, the nodes of the graph that it comes from."""
    wrappers: tuple[compat.Wrapper, ...] = dataclasses.field(default=(), repr=False)
    """Those that Inductor has written and not loaded; `load` loads them."""


def key_of(job: Job, *parts: str) -> str:
    """A hash of a graph and of everything that decides what it is compiled to.  parts: added by the caller."""
    digest = hashlib.sha256()
    for part in (
        compat.graph_text(job.gm, job.inputs),
        *parts,
        source_fingerprint(),
        kernel_scratch.fingerprint(),
        compat.autocast_state(("cpu", job.device.type)),
    ):
        digest.update(part.encode() + b"\0")
    digest.update(compat.config_fingerprint())
    return digest.hexdigest()


def settings_of(options: Options) -> dict[str, Any]:
    """What the options set in Inductor's configuration."""
    return (dict(compat.mode_options(options.mode)) if options.mode else {}) | options.inductor


def refuses_cuda_graphs(options: Options, device: torch.device) -> bool:
    """Whether CUDA graphs are asked for and must be refused: no plan counts their memory pools, which stay allocated.

    A captured graph keeps its buffers between launches, so the next launch finds another level than it was planned
    for. Nor may copies to other tiers be captured.
    """
    return device.type == "cuda" and _asks_for_cuda_graphs(options)


def _asks_for_cuda_graphs(options: Options) -> bool:
    """Whether CUDA graphs are asked for under a plan. On the CPU there are none, but asked for, a step takes more."""
    asked = settings_of(options).get("triton.cudagraphs", compat.inductor_setting("triton.cudagraphs"))
    return bool(asked) and (options.budget is not None or bool(options.offload))


def _prepare_compiler(job: Job) -> None:
    """Have Inductor do in a thread what it does once before its first kernel of C++, while the graph is traced.

    Not for graphs on a GPU, whose kernels are Triton's, nor for those that are traced in next to no time.
    """
    if job.device.type == "cpu" and len(job.gm.graph.nodes) >= LONG_TRACE and job.compile_one is compat.inner_compile:
        _in_thread("memgraph prepares the C++ compiler", compat.prepare_cpp)


def _planned(partitioner: Partitioner | None) -> bool:
    """Whether there is a plan; a graph that is only read or not differentiated has none."""
    return partitioner is not None and bool(partitioner.planned)


def _stands(partitioner: Partitioner | None) -> bool:
    """Whether a plan is taken whatever it allocates."""
    return partitioner is not None and _planned(partitioner) and partitioner.planned[-1].bound is None


def _in_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """Do beside what follows what would be done later in any case; what goes wrong then is met again there."""

    def run() -> None:
        try:
            work()
        except Exception:
            _logger.debug("%s: not done beside the rest", name, exc_info=True)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


@without_collections()
def lower(
    job: Job, partitioner: Partitioner | None, *, cache: bool, loaded: bool = True, wanted: bool = False
) -> tuple[Any, list[Graph]]:
    """Compile a graph, by a partitioner's plan or as plain Inductor does: (the callable, the graphs that were lowered).

    The outermost graph of each phase is the last one of that phase. Where a warm cache answers for the whole
    compilation, no graph is listed.
    loaded: compile the kernels as well; else `load` does that, once what the wrappers allocate is found to be right. On
    CUDA they are compiled all the same: Inductor does that beside the lowering, and keeps them with the graph.
    wanted: `load` will follow where the plan keeps its bound. The forward's kernels are compiled while the backward is
    lowered; where there is no bound, the backward's as soon as it is.
    """
    # Inductor may keep `inner`: it must not know the job, whose inputs are the user's tensors.
    options, progress, name, device, graphs = job.options, job.progress, job.name, job.device.type, []
    patches = settings_of(options)
    origins: dict[str, tuple[str, ...]] = {}  # of the graph that is being lowered
    if partitioner is not None:
        if _asks_for_cuda_graphs(options):
            patches["triton.cudagraphs"] = False
        patches["custom_partitioner_fn"] = partitioner
        order = KeepOrder(lambda backward: _is_ours(partitioner, backward), partitioner.uuid(), origins.update)
        patches["_pre_fusion_custom_pass"] = order
    if not cache:
        patches["force_disable_caches"] = True
    stock = job.compile_one()

    def inner(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        phase = "backward" if kwargs.get("is_backward") else "forward"
        given, returned, trivial = _seen(gm, strict=partitioner is not None)  # before Inductor rewrites the graph
        if options.retain_graph:
            compat.donate_nothing()
        configured = _configured(partitioner, phase == "backward")
        if partitioner is not None:
            compat.lower_transfers()
            compat.lower_shards()
            compat.lower_kernel_ends()
            compat.lower_parts()
        origins.clear()
        loading: contextlib.AbstractContextManager[list[compat.Wrapper]] = contextlib.nullcontext([])
        if not loaded and device == "cpu":
            loading = compat.loading_later()
        with configured, loading as written, progress.stage(f"Inductor {phase}", graph=name):
            lowered = stock(gm, inputs, **kwargs)
        if wanted and (_stands(partitioner) if phase == "backward" else _planned(partitioner)):
            begin(options, written)
        source, kernels = getattr(lowered, "source_code", None) or trivial, compat.triton_kernels_of(lowered)
        graphs.append(Graph(phase, given, returned, source, kernels, dict(origins), tuple(written)))
        return lowered

    _prepare_compiler(job)
    copy = compat.copy_graph(job.gm)
    return compat.compile_graph(copy, job.inputs, inner, patches, retain_graph=options.retain_graph), graphs


def begin(options: Options, wrappers: Sequence[compat.Wrapper], *, seconds: float = 0.0) -> None:
    """Have the kernels of wrappers compiled in threads, while something else is done; `load` waits for them.

    Not where the user has settings of Inductor's own: they are in force while a graph is lowered and while it is
    loaded, and not in between.
    seconds: how long to wait for each at most.
    """
    if settings_of(options):
        return
    threads = [_in_thread("memgraph compiles kernels", wrapper.load) for wrapper in wrappers]
    for thread in threads:
        thread.join(seconds)


def load(job: Job, graphs: list[Graph]) -> None:
    """Compile the kernels of graphs that were lowered without."""
    wrappers = wrappers_of(graphs)
    if wrappers:
        with compat.inductor_settings(settings_of(job.options)), job.progress.stage("Inductor kernels", graph=job.name):
            for wrapper in wrappers:
                wrapper.load()


def wrappers_of(graphs: list[Graph]) -> list[compat.Wrapper]:
    """What `load` loads."""
    return [wrapper for graph in graphs for wrapper in graph.wrappers]


def _seen(gm: fx.GraphModule, *, strict: bool) -> tuple[tuple[tuple[str, Any], ...], tuple[str, ...], str | None]:
    """Inputs, names of outputs, and the wrapper of a graph without work, of the graph that Inductor gets.

    The graphs of the split differ from it: AOTAutograd removes the tokens of effects in between.  strict: raise where
    the graph cannot be read; without a plan it runs all the same, and `read_step` refuses it.
    """
    try:
        return placeholders(gm), output_names(gm), without_work(gm)
    except Exception:
        if strict:
            raise
        return (), (), None


def _configured(partitioner: Partitioner | None, backward: bool) -> contextlib.AbstractContextManager[None]:
    """Inductor's settings while a graph is lowered: its own, where that graph is as it would be without memgraph."""
    plan = _changed(partitioner)
    if plan is None:
        return contextlib.nullcontext()
    return compat.lowering_settings(in_order=_is_ours(partitioner, backward), transfers=bool(plan.transfers))


def _changed(partitioner: Partitioner | None) -> Plan | None:
    """The plan of the graphs that are lowered; None where they are Inductor's own partition, without tiles."""
    if partitioner is None or not partitioner.planned:  # nothing is differentiated
        return None
    plan = partitioner.planned[-1].plan
    return plan if plan.tiled or not plan.stock else None


def _is_ours(partitioner: Partitioner | None, backward: bool) -> bool:
    """Whether the plan orders a graph: a planned backward, a forward with copies to a tier, or a graph with tiles."""
    plan = _changed(partitioner)
    return plan is not None and (plan.tiled or backward or bool(plan.transfers) or plan.ends_in("forward"))


def origins_of(graphs: list[Graph]) -> dict[str, tuple[str, ...]]:
    """By the name of a buffer in `read_step`'s timeline, the nodes of its graph that it comes from."""
    outermost = {graph.phase: graph for graph in graphs}
    return {f"{phase}.{buffer}": names for phase, graph in outermost.items() for buffer, names in graph.origins.items()}


def read_step(
    graphs: list[Graph],
    device: str,
    *,
    retained: bool = False,
    sizes: Mapping[Any, int] | None = None,
    dropped: Collection[int] = (),
) -> Timeline:
    """What one forward and backward of the outermost graph allocate, by Inductor's wrappers.

    retained: saved values outlive the backward.  sizes: values of symbolic sizes, by symbol; without, those that were
    seen when the graph was captured.  dropped: positions of the forward's outputs that the user drops before the
    backward begins.  Raises NotReadable where a wrapper's effect on memory is not known.
    """
    forward, backward, links = read_graphs(graphs, device, retained=retained, sizes=sizes, dropped=dropped)
    return step_timeline(forward, backward, links, dropped)


@without_collections()
def read_graphs(
    graphs: list[Graph],
    device: str,
    *,
    retained: bool = False,
    sizes: Mapping[Any, int] | None = None,
    dropped: Collection[int] = (),
) -> tuple[Lowered, Lowered, Mapping[int, int]]:
    """The outermost forward and backward, and which of the forward's outputs are inputs of the backward.

    Arguments and errors as of `read_step`.
    """
    found = {graph.phase: graph for graph in graphs}
    sources = {phase: graph.source for phase, graph in found.items() if graph.source}
    if missing := {"forward", "backward"} - sources.keys():
        raise NotReadable(0, "", f"there is no Python wrapper of the {' and the '.join(sorted(missing))}")
    first, second = found["forward"], found["backward"]
    forward = read_wrapper(sources["forward"], inputs_of(first.inputs, sizes=sizes), "forward", device=device)
    given = inputs_of(second.inputs, sizes=sizes)
    links = saved_by_name(first.outputs, given)
    users = range(min(links.values(), default=len(first.outputs)))  # what is saved stands behind what the user gets
    inputs = saved_inputs(given, forward, links, held=[position for position in users if position not in dropped])
    if retained:  # autograd keeps them until the graph goes
        inputs = tuple(dataclasses.replace(i, owned=i.owned and n not in links) for n, i in enumerate(inputs))
    return forward, read_wrapper(sources["backward"], inputs, "backward", device=device), links
