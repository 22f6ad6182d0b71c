"""A graph that Dynamo has captured, compiled once more outside of Dynamo."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from memgraph.base.compat.dynamo import copy_graph
from memgraph.base.compat.fake import is_fake


@dataclasses.dataclass(frozen=True)
class Captured:
    """A Dynamo graph without the data of its inputs."""

    graph: Any
    inputs: tuple[Any, ...]
    """Fake tensors for tensors, symbols for symbolic sizes; anything else is as Dynamo gave it."""
    context: Any
    """What Dynamo knew while it captured the graph: its fake mode, its guards, the sources of its inputs."""

    def copy(self) -> Any:
        """The graph, to be taken apart."""
        return copy_graph(self.graph)


def captured(gm: Any, inputs: Any) -> Captured | None:
    """The graph that Dynamo is compiling; None outside of Dynamo, or where an input tensor has no fake one."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return None
    graph, fakes = copy_graph(gm), []
    for node, given in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        fake = _fake(node.meta.get("example_value"), given)
        if fake is None:
            return None
        fakes.append(fake)
        node.meta.pop("grapharg", None)  # it knows the user's tensor
    return Captured(graph, tuple(fakes), context)


def _fake(seen: Any, given: Any) -> Any:
    import torch

    if isinstance(given, torch.Tensor):
        if isinstance(seen, torch.Tensor):
            return seen
        return given if is_fake(given) else None  # a bucket of DDP's is given fake inputs
    if isinstance(given, torch.SymInt):
        return given if seen is None else seen
    return given if isinstance(given, int | float | bool) else None


def returns_a_loss(gm: Any) -> bool:
    """Whether a Dynamo graph returns a single number that is differentiated."""
    import torch

    seen = (node.meta.get("example_value") for node in gm.graph.output_node().all_input_nodes)
    return any(isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad for value in seen)


@contextlib.contextmanager
def compiling_again(known: Captured) -> Iterator[None]:
    """While this lasts, Inductor may compile a copy of the graph, as Dynamo's backend may.

    Other threads' compilations wait. The states of the random generators stay as they were.
    """
    import torch
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.utils import preserve_rng_state
    from torch._guards import tracing

    with compile_lock, preserve_rng_state(), torch.enable_grad(), tracing(known.context):
        yield
