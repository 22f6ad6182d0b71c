"""A graph that calls other graphs, and that a cache can load.

torch pickles a graph as its code, and traces this code when it loads the graph. `invoke_subgraph` cannot be traced that
way: AOTAutograd's cache could store a body within a body, and never load it. And what the code makes out of nothing
would run: a shard's zeros, as large as its scores, became real tensors that stood as long as the graph.
"""

from __future__ import annotations

import dataclasses
import importlib
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
        torchs = isinstance(target, compat.OpOverload | compat.HigherOrderOperator)
        target = str(target) if torchs else f"{target.__module__}:{target.__qualname__}"
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
    for kind in ("_modules", "_parameters", "_buffers"):
        for name, value in data[kind].items():
            setattr(root, name, value)
    return CalledGraph(root, graph)


def _target(text: str) -> Any:
    """What has been written: `aten.slice.Tensor` for example, the operator that calls a body, or `_operator:mul`."""
    if text == "invoke_subgraph":
        return compat.invoke_subgraph()
    module, _, name = text.rpartition(":")
    found: Any = importlib.import_module(module) if module else torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found
