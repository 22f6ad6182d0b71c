"""The one way in which passes put calls into a graph, with the metadata of their results on fake tensors, and out."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from memgraph.base import compat


def call(graph: fx.Graph, mode: Any, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> fx.Node:
    """Insert a call where the graph inserts now (by default at its end), with its value on fake tensors of `mode`."""
    node = graph.create_node("call_function", target, args, kwargs, name=name)
    given = fx.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
    with compat.propagating(mode):
        node.meta["val"] = target(*given[0], **given[1])
    return node


def size(graph: fx.Graph, mode: Any, wanted: int | torch.SymInt) -> int | fx.Node:
    """A size as an argument of a call: a number, or a node that computes it from the symbols among the graph's inputs.

    Raises GraphError where the graph does not get a symbol of the size.
    """
    if isinstance(wanted, int):
        return wanted
    tracer = _Calls(graph, mode)
    known = {}
    for node in graph.find_nodes(op="placeholder"):
        if (symbol := compat.bound_symbol(node.meta.get("val"))) is not None:
            known[symbol] = tracer.proxy(node)
    made = compat.computed_size(wanted, known)
    return made.node if isinstance(made, fx.Proxy) else int(made)


def mode_of(node: fx.Node) -> Any:
    """The fake mode that a node's value was made in: a graph may have values of several."""
    return compat.fake_mode_of([node.meta["val"]])


def provenance(node: fx.Node) -> dict[str, Any]:
    """Where a node comes from: its metadata without what describes its own value."""
    return {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta", "eager_input_vals")}


def erase(node: fx.Node) -> None:
    """Erase a call that nothing reads, and what nothing but it has read."""
    pending = [node]
    while pending:
        node = pending.pop()
        if node._erased or node.users or node.op != "call_function":
            continue
        reads = node.all_input_nodes
        node.graph.erase_node(node)
        pending += reads


def sort(graph: fx.Graph) -> None:
    """Move each node behind the nodes that it reads; otherwise the order stays."""
    done: set[fx.Node] = set()
    last: fx.Node | None = None
    for node in list(graph.nodes):
        pending = [node]
        while pending:
            top = pending[-1]
            missing = [read for read in top.all_input_nodes if read not in done]
            if missing:
                pending += missing
                continue
            pending.pop()
            if top in done:
                continue
            done.add(top)
            if last is not None and top.prev is not last:
                last.append(top)
            last = top


class _Calls(fx.proxy.GraphAppendingTracer):
    """Turns arithmetic on proxies into calls of a graph."""

    def __init__(self, graph: fx.Graph, mode: Any) -> None:
        super().__init__(graph)
        self.mode = mode

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: str | None = None, type_expr: Any = None
    ) -> fx.Node:
        return call(self.graph, self.mode, target, *args, name=name, **kwargs)
