"""A call of an operator without its data: all that decides how much memory its kernel takes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.costs import span
from memgraph.facts.operators import qualified_name


class Indescribable(Exception):
    """An argument that is neither a tensor of known sizes nor plain data."""


@dataclasses.dataclass(frozen=True)
class Operand:
    """A strided tensor: sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def span(self) -> int:
        """Elements from the first to the last in memory."""
        return span(self.size, self.stride)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps."""
        return math.prod(self.size) * self.dtype.itemsize

    def dense(self, order: Sequence[int]) -> bool:
        """Whether the elements lie without gaps, the last dimension of `order` fastest."""
        expected = 1
        for dim in reversed(order):
            if self.size[dim] != 1 and self.stride[dim] != expected:
                return False
            expected *= self.size[dim]
        return True

    def channels_last(self) -> Operand:
        """The same elements with the second dimension fastest."""
        return self.laid_out((1, *reversed(range(2, len(self.size))), 0))

    def laid_out(self, dims: Sequence[int]) -> Operand:
        """The same elements without gaps, the first of `dims` fastest."""
        stride, step = [0] * len(self.size), 1
        for dim in dims:
            stride[dim], step = step, step * self.size[dim]
        return dataclasses.replace(self, stride=tuple(stride))

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}{list(self.stride)}".replace(" ", "")


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def described(value: Any) -> Any:
    """An argument or a result with its tensors as Operands, and its lists as tuples.

    value: also an FX node, for what it computes; or anything with the fields `size`, `stride` and `dtype`.
    Raises Indescribable for tensors that are not strided and for other types, GraphError for a size that only data
    decide.
    """
    if isinstance(value, fx.Node):
        return described(value.meta.get("val"))
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise Indescribable(f"a tensor of layout {value.layout}")
        size, stride = (tuple(map(compat.size_hint, steps)) for steps in (value.shape, value.stride()))
        return Operand(size, stride, value.dtype)
    if isinstance(getattr(value, "dtype", None), torch.dtype):
        return Operand(tuple(map(int, value.size)), tuple(map(int, value.stride)), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(described, value))
    if isinstance(value, torch.SymInt):
        return compat.size_hint(value)
    if value is None or isinstance(value, _PLAIN):
        return value
    raise Indescribable(f"an argument of type {type(value).__name__}")


def _dense_parts(outputs: Any) -> Any:
    """The results of an operator, each sparse one as its two dense parts."""
    outputs = outputs.meta.get("val") if isinstance(outputs, fx.Node) else outputs
    if isinstance(outputs, list | tuple):
        return tuple(map(_dense_parts, outputs))
    if isinstance(outputs, torch.Tensor) and outputs.layout is torch.sparse_coo:
        return outputs._indices(), outputs._values()
    return outputs


def operands(value: Any) -> Iterator[Operand]:
    """The Operands in what `described` returned."""
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from operands(item)
    elif isinstance(value, Mapping):
        yield from operands(tuple(value.values()))


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an operator, without its data."""

    op: Callable[..., Any]
    """An OpOverload or its packet."""
    args: tuple[Any, ...]
    """As `described` returns them; so are `kwargs` and `outputs`."""
    kwargs: Mapping[str, Any]
    outputs: Any

    @classmethod
    def of(cls, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> Call:
        """A call with `described` arguments and results, a sparse result as its parts.  Raises as `described` does."""
        keywords = {name: described(value) for name, value in kwargs.items()}
        return cls(op, tuple(map(described, args)), keywords, described(_dense_parts(outputs)))

    @property
    def name(self) -> str:
        """The operator with its namespace, such as `aten::mm`: overloads share their kernels."""
        return qualified_name(self.op)

    @functools.cached_property
    def named(self) -> dict[str, Any]:
        """The arguments by their names in the schema, defaults included."""
        arguments = schema(self.op).arguments
        found = {arg.name: arg.default_value for arg in arguments if arg.has_default_value()}
        found.update(zip((arg.name for arg in arguments), self.args, strict=False))
        return {**found, **self.kwargs}

    @property
    def inputs(self) -> int:
        """Bytes of all tensors that it reads."""
        return sum(operand.nbytes for operand in operands((self.args, self.kwargs)))

    @property
    def made(self) -> int:
        """Bytes of all tensors that it returns."""
        return sum(operand.nbytes for operand in operands(self.outputs))

    def __str__(self) -> str:
        """All that decides about its kernel, as text."""
        keywords = [f"{name}={_text(value)}" for name, value in sorted(self.kwargs.items())]
        return f"{self.op}({', '.join([*map(_text, self.args), *keywords])})"


def schema(op: Any) -> Any:
    """The schema of an OpOverload, or of a packet's overload `default`, else of its first."""
    if hasattr(op, "_schema"):
        return op._schema
    names = op.overloads()
    return getattr(op, "default" if "default" in names else names[0])._schema


def _text(value: Any) -> str:
    return f"({','.join(map(_text, value))})" if isinstance(value, tuple) else str(value)
