"""What the token flow reads of one node: shapes, arguments, inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import qualified_name

# Operators that make one number many times: the place of that number among their arguments.
_FILLED = {"aten::full": 1, "aten::scalar_tensor": 0}


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def is_tensor(item: object) -> bool:
    return isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor)


def tensors(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node reads."""
    return [read for read in node.all_input_nodes if is_tensor(read)]


def counts_from_zero(node: fx.Node) -> bool:
    """Whether a node, one of the COUNTERS, gives 0, 1, 2, ..."""
    return len(node.args) == 1 and node.kwargs.get("start", 0) == 0 and node.kwargs.get("step", 1) == 1


def makes_zeros(node: fx.Node) -> bool:
    """Whether a node makes zeros."""
    name = qualified_name(node.target)
    return name == "aten::zeros" or name in _FILLED and node.args[_FILLED[name]] == 0


def output_count(node: fx.Node) -> int:
    """How many outputs the operator of a node has."""
    return len(node.target._schema.returns)


def dims_of(given: Any, rank: int) -> tuple[int, ...]:
    """An argument `dim` as dimensions from 0 on; all of them for None or []."""
    if given is None or given == []:
        return tuple(range(rank))
    return tuple(dim % rank for dim in (given if isinstance(given, list | tuple) else [given]))
