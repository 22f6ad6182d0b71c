"""What a reader wants to know of a node: its operator, its shape, its module, the line of the user's code."""

from __future__ import annotations

import functools

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.facts.operators import qualified_name
from memgraph.facts.regions import module_path
from memgraph.facts.values import Label


def label_of(node: fx.Node, *, forward: bool) -> Label:
    """The label of a node.  forward: whether it runs in the forward, and is not there for a gradient."""
    val = node.meta.get("val")
    tensor = val if isinstance(val, torch.Tensor) else None
    operator = qualified_name(node.target) if node.op == "call_function" else ""
    if node.op == "call_function" and not operator:
        operator = getattr(node.target, "__name__", "")
    stack = node.meta.get("nn_module_stack") if forward else None
    return Label(
        operator=operator,
        dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
        shape=() if tensor is None else _shape(tensor),
        module=module_path(stack or node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")),
    )


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Empty where only data decide it: planning says so by itself."""
    try:
        return tuple(compat.size_hint(size) for size in tensor.shape)
    except (GraphError, AttributeError):  # a ragged dimension measures nothing
        return ()


def source_of(node: fx.Node) -> str:
    """ "file:line" of the innermost user frame that made the node."""
    return _innermost(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=4096)  # a line of the user's code makes several nodes, and each layer runs it
def _innermost(stack: str) -> str:
    line = ""
    for text in stack.splitlines():
        text = text.strip()
        if text.startswith("File "):
            parts = text.split('"')
            number = parts[2].split(",")[1].replace("line", "").strip() if len(parts) > 2 else ""
            line = f"{parts[1]}:{number}"
    return line
