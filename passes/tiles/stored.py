"""A graph that calls other graphs, and that a cache can load.

torch pickles a graph as its code, and traces this code when it loads the graph. `invoke_subgraph` cannot be traced that
way: AOTAutograd's cache could store a body within a body, and never load it.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from memgraph.base import compat


@dataclasses.dataclass(frozen=True)
class _Read:
    """Stands for a node among the arguments of another."""

    name: str


class CalledGraph(fx.GraphModule):
    """A GraphModule that is pickled node by node, in addition to its code."""

    def __reduce__(self) -> tuple[Any, ...]:
        _, (data, imports) = super().__reduce__()
        return _again, (data | {"_nodes": [_written(node) for node in self.graph.nodes]}, imports)


def _written(node: fx.Node) -> tuple[Any, ...]:
    target = node.target
    if node.op == "call_function":
        target = f"operator.{target.__name__}" if target.__module__ == "_operator" else str(target)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda read: _Read(read.name))
    return node.op, node.name, target, args, kwargs


def _again(data: dict[str, Any], imports: str) -> CalledGraph:
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}

    def node_of(item: Any) -> Any:
        return made[item.name] if isinstance(item, _Read) else item

    for op, name, target, args, kwargs in data["_nodes"]:
        target = _target(target) if op == "call_function" else target
        args, kwargs = fx.node.map_aggregate((args, kwargs), node_of)
        made[name] = graph.create_node(op, target, args, kwargs, name=name)
    root = torch.nn.Module()
    for name, module in data["_modules"].items():
        root.add_module(name, module)
    return CalledGraph(root, graph)


def _target(text: str) -> Any:
    """The operator with this `str`: `aten.slice.Tensor` for example, or the operator that calls a body."""
    if text == "invoke_subgraph":
        return compat.invoke_subgraph()
    if text.startswith("operator."):
        return getattr(operator, text.removeprefix("operator."))
    found: Any = torch.ops
    for part in text.split("."):
        found = getattr(found, part)
    return found
