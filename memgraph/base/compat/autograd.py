"""Autograd: the node of a compiled graph, and whether a backward runs."""

from __future__ import annotations

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
    from torch._C import _current_graph_task_id

    return _current_graph_task_id() != -1
