"""Autograd: the node of a compiled graph, and whether a backward runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled_node(outputs: Any) -> Any:
    """The autograd node that runs a compiled graph's backward, found from what its forward returned.

    None where nothing is differentiated. For an output that is a view, the node of the view comes first.
    """
    import torch

    pending = [item.grad_fn for item in outputs if isinstance(item, torch.Tensor) and item.grad_fn is not None]
    for _ in range(4):  # a view of a view, at most
        for node in pending:
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return node
        pending = [before for node in pending for before, _ in node.next_functions if before is not None]
    return None


def in_backward() -> bool:
    """Whether a backward runs on this thread, a hook of it, say."""
    import torch

    return torch._C._current_graph_task_id() != -1


def after_backward(call: Callable[[], None]) -> None:
    """Have a function called once the backward that runs on this thread has come to its end."""
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(call)


def on_next(node: Any, call: Callable[[], None]) -> Handles:
    """Have a function called when autograd goes on from a node to one of those that get its gradients.

    Other than a hook behind the node itself, this leaves autograd free to give the tangents away.
    """
    following = {id(after): after for after, _ in node.next_functions if after is not None}
    return Handles([after.register_prehook(lambda _: call()) for after in following.values()])


def on_end(node: Any, call: Callable[[], None]) -> Handles:
    """Have a function called when a node has run, on the same thread and with the profiler that was started before it.

    Autograd holds the tangents of such a node until it returns.
    """
    return Handles([node.register_hook(lambda *_: call())])


class Handles:
    """Hooks that can be taken away."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take them away; again is no error."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
