"""Sizes of a graph, plain and symbolic."""

from __future__ import annotations

from typing import Any

from memgraph.base.errors import GraphError


def size_hint(size: Any) -> int:
    """A size as a plain int; of a symbolic one, the value seen when the graph was captured.

    Raises GraphError for a size that only data decide.
    """
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise GraphError(
            f"the size {size} depends on data (nonzero, item, a boolean mask): its bytes are unknown before it runs, "
            "so no budget can be kept. Take the operator out of the compiled function (torch.compiler.disable), or "
            "compile this function with Inductor."
        )
    return int(hint)


def number_hint(number: Any) -> int | None:
    """An integer argument of a graph as a plain int, as `size_hint`.

    None for the ragged dimension of a jagged nested tensor: that is the name of a structure, and measures nothing.
    """
    return size_hint(number) if isinstance(number, int) or not number.node.is_nested_int() else None


def size_node(size: Any, graph: Any) -> Any:
    """A size as an argument of a node that `graph` is about to get: a number, or a node that computes it from the
    symbols among the graph's inputs.

    Raises GraphError where a symbol is not among them.
    """
    import torch.fx as fx
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if isinstance(size, int):
        return size
    symbols = {}
    for node in graph.find_nodes(op="placeholder"):
        known = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
        if known is not None and known.is_symbol:
            symbols[known] = fx.Proxy(node)
    if missing := size.node.expr.free_symbols - symbols.keys():
        raise GraphError(f"the size {size} needs {missing}, which the backward does not get")
    made = sympy_interp(PythonReferenceAnalysis, symbols, size.node.expr)
    if not isinstance(made, fx.Proxy):
        return int(made)
    pending = [made.node]
    while pending:  # the nodes on the way: each is computed from sizes that are known
        node = pending[-1]
        unknown = [read for read in node.all_input_nodes if "val" not in read.meta]
        if not unknown:
            arguments = fx.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
            node.meta.setdefault("val", node.target(*arguments[0], **arguments[1]))
            pending.pop()
        pending += unknown
    return made.node
