"""Runs graphs on smaller sizes than those that they were made for (`smaller.py`), on the CPU.

Operators that put shards together write in place, as they do when Inductor has compiled them; rows that no shard has
written hold NaN, or 77 in a tensor of integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.compat import tree_map
from memgraph.verify.arguments import argument, name_of, shapes
from memgraph.verify.attention import KERNELS, attend
from memgraph.verify.smaller import Sizes


class Misfit(Exception):
    """An operator probably does not accept the smaller sizes.  sizes: of its values and its operands."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        self.sizes = {
            size for each in (node, *node.all_input_nodes) for shape in shapes(each.meta.get("val")) for size in shape
        }
        super().__init__(f"{node.name} {reason}")


class Execution:
    """Runs a graph, and the graphs that it calls, on smaller sizes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def run(self, graph: fx.Graph, inputs: Sequence[Any], owner: torch.nn.Module | None = None) -> tuple[Any, ...]:
        """What a graph returns.  owner: the module that holds the graphs that it calls.

        Raises Misfit where an operator fails, and MemoryError or torch.OutOfMemoryError.
        """
        values: dict[fx.Node, Any] = {}
        given, last = iter(inputs), _last_readers(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(owner)
            elif node.op == "output":
                return tuple(values[read] for read in node.args[0])
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                try:
                    values[node] = self.call(node, args, kwargs)
                except (Misfit, MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception as error:  # whatever an operator raises on sizes that it does not accept
                    if "can't allocate memory" in str(error):  # torch's allocator for the CPU raises RuntimeError
                        raise MemoryError(first_line(error)) from error
                    raise Misfit(node, f"fails: {first_line(error)}") from error
            self.made(node, values)
            for read in last.get(node, ()):
                del values[read]
        raise ValueError("a graph without an output")

    def call(self, node: fx.Node, args: tuple, kwargs: dict) -> Any:
        target, name = node.target, name_of(node.target)
        if target is compat.invoke_subgraph():
            return self.run(args[0].graph, args[2:], args[0])
        if not name:
            return target(*args, **kwargs)
        args, kwargs = self.sizes.arguments(node, args, kwargs)
        args, kwargs = tree_map(_placed, (args, kwargs))
        if name == "memgraph::shard_whole":
            return _unwritten(target(*args, **kwargs), *args[:2])
        if name in ("memgraph::shard_put", "memgraph::shard_add", "memgraph::shard_sum"):
            getattr(torch.ops.memgraph, name.removeprefix("memgraph::") + "_").default(*args, **kwargs)
            return args[0]
        if name in ("aten::view", "aten::_unsafe_view"):  # real strides are not always those that torch foresees
            return args[0].reshape(args[1])
        if name == "aten::mean":
            return self._mean(node, args, kwargs)
        if name in KERNELS:
            return attend(node, args, kwargs, self.sizes)
        try:
            return target(*args, **kwargs)
        except Exception as error:
            if not _no_kernel(error):
                raise
            return _in_float64(node, args, kwargs)

    def made(self, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        """Called after each node, with all values that stand."""

    def _mean(self, node: fx.Node, args: tuple, kwargs: dict) -> torch.Tensor:
        """The sum divided by the count of the original sizes: the tile has that count as a constant."""
        counted = math.prod(argument(node.target, node.args, {}, "self").meta["val"].shape)
        dims = argument(node.target, args, kwargs, "dim")
        whole, value = args[0], node.meta["val"]
        wide = torch.promote_types(value.dtype, torch.float32)
        keep = bool(argument(node.target, args, kwargs, "keepdim"))
        total = whole.sum(dims or None, keepdim=keep, dtype=wide) if dims else whole.sum(dtype=wide)
        return (total / (counted // max(1, value.numel()))).to(value.dtype)


class DryExecution(Execution):
    """Runs graphs on fake tensors: checks shape and type of each value, and finds the most bytes that stand at once.

    Raises Misfit for a value of another shape or type than the small one of its metadata.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.peak = 0
        self.standing = 0  # bytes of the values of the graph that runs
        self.outside = 0  # bytes of the values of the graphs that call it
        self.known: dict[fx.GraphModule, tuple[Any, ...]] = {}  # what a body returned the first time

    def call(self, node: fx.Node, args: tuple, kwargs: dict) -> Any:
        if node.target is not compat.invoke_subgraph():
            return super().call(node, args, kwargs)
        body, operands = args[0], args[2:]
        for placeholder, operand in zip(body.graph.find_nodes(op="placeholder"), operands, strict=True):
            self._check(placeholder, operand)
        if body not in self.known:
            outside, self.outside = self.outside, self.outside + self.standing
            self.known[body] = self.run(body.graph, operands, body)
            self.outside = outside
        return tuple(torch.empty_strided(item.shape, item.stride(), dtype=item.dtype) for item in self.known[body])

    def made(self, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        if node.op != "get_attr":
            self._check(node, values[node])
        self.standing = _bytes(values.values())
        self.peak = max(self.peak, self.outside + self.standing)

    def _check(self, node: fx.Node, value: Any) -> None:
        said = node.meta["val"]
        for one, other in zip(_tensors(said), _tensors(value), strict=True):
            if self.sizes.shape(one.shape) != tuple(other.shape) or one.dtype != other.dtype:
                raise Misfit(node, f"is {show_value(other)}, not {show_value(one)} made small")


def _no_kernel(error: Exception) -> bool:
    """Whether an error says that an operator has no kernel for a type on the CPU."""
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _in_float64(node: fx.Node, args: tuple, kwargs: dict) -> Any:
    """What an operator gives on numbers in float64, in the types that it gives on the device.

    Counts of integers, for example, have a kernel for integers on CUDA alone.
    """

    def wide(item: Any) -> Any:
        return item.double() if isinstance(item, torch.Tensor) and item.dtype is not torch.bool else item

    try:
        made = node.target(*tree_map(wide, args), **tree_map(wide, kwargs))
    except Exception as error:
        raise NotImplementedError(f"has no kernel there: {first_line(error)}") from error
    if isinstance(made, torch.Tensor):
        return made.to(node.meta["val"].dtype)
    return tuple(item.to(said.dtype) for item, said in zip(made, node.meta["val"], strict=True))


def _placed(item: Any) -> Any:
    return torch.device("cpu") if isinstance(item, torch.device) else item


def _last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node, the values that nobody reads after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        for read in node.all_input_nodes:
            last[read] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for read, reader in last.items():
        found.setdefault(reader, []).append(read)
    return found


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in values if isinstance(item, torch.Tensor)]


def _bytes(values: Iterable[Any]) -> int:
    held = {}
    for value in values:
        for item in _tensors(value):
            held[compat.storage_id(item)] = item.untyped_storage().nbytes()
    return sum(held.values())


def show_value(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}, stride {list(value.stride())}"


def _unwritten(whole: torch.Tensor, first: torch.Tensor, dim: int) -> torch.Tensor:
    """The same tensor; the rows that no shard has written yet hold what no tile makes: NaN, or 77."""
    rest = whole.narrow(dim, first.shape[dim], whole.shape[dim] - first.shape[dim])
    rest.fill_(float("nan") if whole.dtype.is_floating_point else 77)
    return whole


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
