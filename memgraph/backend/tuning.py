"""Kernels are tuned before the first step, not in it.

Inductor measures a Triton kernel that has several variants when it first runs: within the first step, beside all that
is allocated there, with a buffer as large as the card's cache (50 MiB on an H100). The wrapper gives the layouts of
each kernel's arguments, so it can be run once on zeros when it has been compiled, while none of the step's memory is
taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memgraph.backend.inductor import Graph
from memgraph.base import compat
from memgraph.lower.tensors import Layout, span
from memgraph.lower.timeline import Lowered
from memgraph.lower.wrapper import NotReadable

_logger = logging.getLogger(__name__)


def tune(graphs: list[Graph], device: torch.device, read: Callable[[], tuple[Lowered, ...]]) -> tuple[str, ...]:
    """Run each Triton kernel that is still to be tuned once, and say what could not be.

    graphs: what was lowered; none after a warm cache, whose kernels are tuned.  read: the wrappers of the outermost
    graphs, as `read_graphs` reads them.
    """
    if device.type != "cuda":
        return ()
    # A kernel's name is its own within one wrapper alone.
    waiting = [
        (graph, name, kernel)
        for graph in graphs
        for name, kernel in graph.kernels.items()
        if compat.is_tuned_when_run(kernel)
    ]
    if not waiting:
        return ()
    try:
        wrappers: dict[str, Lowered] = {lowered.phase: lowered for lowered in read()}
    except NotReadable:  # the report says so already
        wrappers = {}
    outermost = {graph.phase: graph for graph in graphs}

    def args(graph: Graph, name: str) -> tuple[Any, ...] | None:
        known = graph.phase in wrappers and outermost[graph.phase] is graph
        return wrappers[graph.phase].launches.get(name) if known else None

    left = [name for graph, name, kernel in waiting if not _tuned(kernel, args(graph, name), device)]
    torch.cuda.empty_cache()  # the buffer would stay reserved
    return tuple(_notes(left))


def _tuned(kernel: Any, args: tuple[Any, ...] | None, device: torch.device) -> bool:
    """Whether a kernel could be run on zeros in the layouts of its arguments."""
    if args is None or not all(isinstance(arg, Layout | int | float) for arg in args):
        return False
    try:
        with torch.cuda.device(device), compat.really(), torch.no_grad():
            values = [_zeros(arg, device) if isinstance(arg, Layout) else arg for arg in args]
            kernel.run(*values, stream=torch.cuda.current_stream(device).cuda_stream)
    except Exception:  # no memory for it now, say: it is tuned when it runs
        _logger.debug("a kernel is not tuned before the first step", exc_info=True)
        return False
    return True


def _zeros(layout: Layout, device: torch.device) -> torch.Tensor:
    """Indices among the arguments are 0, so that nothing beyond a tensor is read."""
    memory = torch.zeros(span(layout.size, layout.stride), dtype=layout.dtype, device=device)
    return memory.as_strided(layout.size, layout.stride)


def _notes(left: list[str]) -> Iterator[str]:
    if left:
        names = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        yield f"kernels that are tuned in the first step, which may take more for it: {names}"
