"""Autograd: the node of a compiled graph, and whether a backward runs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable
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


def keeps_saved_values() -> bool:
    """Whether the backward that runs on this thread may be followed by another one (`retain_graph`, `create_graph`)."""
    import torch

    return torch._C._autograd._get_current_graph_task_keep_graph()


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


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A call of `torch.utils.checkpoint` that a forward runs in."""

    frame: Any
    """What stands for the call for as long as its function can run once more."""
    again: Hashable
    """What stands for the backward (its number), or for a group of them, for which it
    runs once more, since its first run has dropped what it saved; None in that first run."""


def checkpoint_around() -> Checkpoint | None:
    """The innermost call of `torch.utils.checkpoint` that this runs in; None outside of any.

    It drops what is saved meanwhile. Reentrant ones do not count: they run the first time without gradients.
    """
    import torch

    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if not hooks or getattr(hooks[0], "__module__", None) != "torch.utils.checkpoint":
        return None
    pack = inspect.unwrap(hooks[0])  # Dynamo is told to leave it alone by a wrapper
    known = dict(zip(pack.__code__.co_freevars, (cell.cell_contents for cell in pack.__closure__ or ()), strict=True))
    again = known.get("gid")
    frame = known.get("frame") if again is None else known["target_frame_ref"]()
    return None if frame is None else Checkpoint(frame, again)


class Handles:
    """Hooks that can be taken away."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take them away; again is no error."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
