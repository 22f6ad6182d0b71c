"""Sizes of a graph, plain and symbolic."""

from __future__ import annotations

from collections.abc import Mapping
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


def size_at(size: Any, values: Mapping[Any, int] | None) -> int:
    """A size as a plain int, where its symbols have some values; without them as `size_hint`.

    Raises GraphError for a size that needs another symbol.
    """
    if values is None or isinstance(size, int):
        return size_hint(size)
    return int(computed_size(size, dict(values)))


def number_at(number: Any, values: Mapping[Any, int] | None = None) -> int | None:
    """An integer argument of a graph as a plain int, as `size_at`.

    None for the ragged dimension of a jagged nested tensor: that is the name of a structure, and measures nothing.
    """
    return size_at(number, values) if isinstance(number, int) or not number.node.is_nested_int() else None


def is_size(given: Any) -> bool:
    """Whether an input of a graph is a symbolic size; the ragged dimension of a jagged nested tensor is none."""
    import torch

    return isinstance(given, torch.SymInt) and not given.node.is_nested_int()


def largest(size: Any) -> int | None:
    """The largest value that a symbolic size may have, as `torch._dynamo.mark_dynamic(max=...)` says it; or None."""
    expression = size.node.expr
    found = size.node.shape_env.var_to_range.get(expression)
    upper = None if found is None else found.upper
    return int(upper) if upper is not None and upper.is_Integer and int(upper) < 2**48 else None


def symbol_of(value: Any) -> Any:
    """The symbol that a size stands for; None for an expression, a number or anything else."""
    expression = getattr(getattr(value, "node", None), "expr", None)
    return expression if expression is not None and expression.is_symbol else None


def computed_size(size: Any, known: dict[Any, Any]) -> Any:
    """A symbolic size, computed from values of its symbols: numbers, or proxies of nodes.

    Raises GraphError where the value of a symbol is not known.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if missing := size.node.expr.free_symbols - known.keys():
        raise GraphError(f"the size {size} needs {missing}, which the backward does not get")
    return sympy_interp(PythonReferenceAnalysis, known, size.node.expr)
