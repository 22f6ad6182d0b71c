"""Sizes of a graph, plain and symbolic."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

from memgraph.base.errors import GraphError


def size_hint(size: Any) -> int:
    """A size as a plain int: of a symbolic one the value when the graph was captured, or that of `reading_with`.

    Raises GraphError for a size that only data decide.
    """
    if isinstance(size, int):
        return size
    taken = _taken.get()
    if taken is not None and (found := taken.value(size)) is not None:
        return found
    hint = size.node.hint
    if hint is None:
        raise GraphError(
            f"the size {size} depends on data (nonzero, item, a boolean mask): its bytes are unknown before it runs, "
            "so no budget can be kept. Take the operator out of the compiled function (torch.compiler.disable), or "
            "compile this function with Inductor."
        )
    return int(hint)


_TRIED = (1, 31, 32, 33, 1000, 4095, 4096, 10_007)


class _Taken:
    """Values of symbols, and of the sizes that were computed from them."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values, self._known = values, dict[Any, int | None]()

    def value(self, size: Any) -> int | None:
        """A symbolic size; None where it needs another symbol."""
        expression = size.node.expr
        if expression not in self._known:
            symbols = expression.free_symbols
            values = {symbol: self._values[str(symbol)] for symbol in symbols if str(symbol) in self._values}
            self._known[expression] = _number(size, values) if len(values) == len(symbols) else None
        return self._known[expression]


_taken: contextvars.ContextVar[_Taken | None] = contextvars.ContextVar("memgraph.sizes", default=None)


@contextlib.contextmanager
def reading_with(values: Mapping[str, int]) -> Iterator[None]:
    """Within it graphs are read as if they had been captured with other sizes.  values: by the names of symbols."""
    token = _taken.set(_Taken(values) if values else None)
    try:
        yield
    finally:
        _taken.reset(token)


def size_at(size: Any, values: Mapping[Any, int] | None) -> int:
    """A size as a plain int for given values of its symbols; without values as `size_hint`.

    Raises GraphError for a size that needs another symbol.
    """
    if values is None or isinstance(size, int):
        return size_hint(size)
    return _number(size, values)


def number_at(number: Any, values: Mapping[Any, int] | None = None) -> int | None:
    """An integer argument of a graph as a plain int, as `size_at`.

    None for the ragged dimension of a jagged nested tensor: that is the name of a structure, and measures nothing.
    """
    return size_at(number, values) if isinstance(number, int) or not number.node.is_nested_int() else None


def is_size(given: Any) -> bool:
    """Whether an input of a graph is a symbolic size; the ragged dimension of a jagged nested tensor is none."""
    import torch

    return isinstance(given, torch.SymInt) and not given.node.is_nested_int()


def is_backed(size: Any) -> bool:
    """Whether a symbolic size had a value when its graph was captured: one that data decide has none."""
    return size.node.hint is not None


def largest(size: Any) -> int | None:
    """The largest value that a symbolic size may have, as `torch._dynamo.mark_dynamic(max=...)` says it; or None."""
    expression = size.node.expr
    found = size.node.shape_env.var_to_range.get(expression)
    upper = None if found is None else found.upper
    return int(upper) if upper is not None and upper.is_Integer and int(upper) < 2**48 else None


def smallest(symbol: Any, size: Any) -> int:
    """The smallest value that a symbol may have.  size: a symbolic size of the same graph."""
    found = size.node.shape_env.var_to_range.get(symbol)
    lower = None if found is None else found.lower
    return int(lower) if lower is not None and lower.is_Integer and lower > 2 else 2


def may_be_guarded(size: Any) -> bool:
    """Whether what is assumed of a symbolic size becomes a guard: Dynamo has not yet written those of its graph."""
    return not size.node.shape_env.frozen


def assume_at_least(size: Any, least: int) -> None:
    """Have Dynamo compile another graph where a symbolic size is less.  It is as large in the capture."""
    if not isinstance(size, int) and may_be_guarded(size):
        bool(size >= least)


def sizes_in(value: Any) -> list[Any]:
    """The symbolic sizes in a node's value: the value itself, or those in the shapes and strides of its tensors."""
    import torch

    if isinstance(value, torch.SymInt):
        return [value]
    if isinstance(value, torch.Tensor):
        steps = (*value.shape, *value.stride()) if value.layout is torch.strided else value.shape
        return [size for size in steps if not isinstance(size, int)]
    return [size for item in value for size in sizes_in(item)] if isinstance(value, list | tuple) else []


def symbols_in(value: Any) -> set[Any]:
    """The symbols of the sizes in a node's value."""
    return {symbol for size in sizes_in(value) for symbol in size.node.expr.free_symbols}


def same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are equal whatever their symbols are; no guard is left behind."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    expressions: list[Any] = [size if isinstance(size, int) else size.node.expr for size in (one, other)]
    left, right = expressions
    return bool(left == right) or bool((left - right).expand() == 0)


def seem_equal(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for a few values of their symbols; no guard is left behind.

    torch rounds up with fractions, and no rule says that this is what whole numbers give.
    """
    sizes = [size for size in (one, other) if not isinstance(size, int)]
    symbols = sorted({symbol for size in sizes for symbol in size.node.expr.free_symbols}, key=str)
    for first in _TRIED:
        values = {symbol: first + 2 * n for n, symbol in enumerate(symbols)}
        if size_at(one, values) != size_at(other, values):
            return False
    return True


def symbol_of(value: Any) -> Any:
    """The symbol that a size stands for; None for an expression, a number or anything else."""
    expression = getattr(getattr(value, "node", None), "expr", None)
    return expression if expression is not None and expression.is_symbol else None


def bound_symbol(value: Any) -> Any:
    """The symbol that an input of a graph is, for whoever calls the graph; None where it is none, or not any more.

    Of two sizes that turned out equal while a graph was captured, one symbol stands for both from then on. Inductor
    takes an input by the symbol that it was made with, and looks for the other in vain (2.11 to 2.15).
    """
    symbol = symbol_of(value)
    return symbol if symbol is not None and value.node._expr == symbol else None


def computed_size(size: Any, known: dict[Any, Any]) -> Any:
    """A symbolic size, computed from values of its symbols: numbers, or proxies of nodes.

    Raises GraphError where the value of a symbol is not known.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if missing := size.node.expr.free_symbols - known.keys():
        raise GraphError(f"the size {size} needs {missing}, which the backward does not get")
    return sympy_interp(PythonReferenceAnalysis, known, size.node.expr)


def _number(size: Any, values: Mapping[Any, int]) -> int:
    """A symbolic size for given values of its symbols, by sympy.

    `computed_size` fails here for numbers that are rounded up, as the rows of an attention kernel are: what torch's
    interpreter rounds is sympy's, and what it takes the larger of has to be Python's (2.11 to 2.15).

    Raises GraphError where the value of a symbol is not known.
    """
    from sympy import Integer  # type: ignore[import-untyped]

    expression = size.node.expr
    if missing := expression.free_symbols - values.keys():
        raise GraphError(f"the size {size} needs {missing}, which the backward does not get")
    return int(expression.xreplace({symbol: Integer(int(value)) for symbol, value in values.items()}))


def free_symbols(size: Any) -> set[Any]:
    """The symbols of a symbolic number; none of a ragged dimension, which is the name of a structure."""
    return set() if size.node.is_nested_int() else set(size.node.expr.free_symbols)


def expression_text(size: Any) -> str:
    """A symbolic number as text, in the names of its symbols."""
    return "ragged" if size.node.is_nested_int() else str(size.node.expr)
