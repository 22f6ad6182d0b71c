"""Calls that rewrites put into graphs, and the metadata that they get."""

from __future__ import annotations

from typing import Any

from torch import fx

from memgraph.base import compat


def call(graph: fx.Graph, mode: Any, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> fx.Node:
    """A call where a graph inserts (at its end, unless told), with the metadata that it has on fake tensors."""
    node = graph.create_node("call_function", target, args, kwargs, name=name)
    given = fx.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
    with compat.propagating(mode):
        node.meta["val"] = target(*given[0], **given[1])
    return node


def place_of(node: fx.Node) -> dict[str, Any]:
    """Where a node is from: all of its metadata but what it holds and what was said about that one value."""
    return {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta", "eager_input_vals")}
