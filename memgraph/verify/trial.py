"""What a tile computes held against what its region computes, on small data.

Both graphs run as they stand, with all their shards, on smaller sizes (`smaller.py`): once on fake tensors, where each
operator has to give the shape that its value should have and the bytes are counted, and only then on random data. Both
are always on the CPU: the device may be full, and an index out of bounds there would end the process. What puts shards
together writes into place, as it does when Inductor has compiled it, and what no shard has written is not a number.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from memgraph.base import compat
from memgraph.base.sizes import format_size
from memgraph.verify.smaller import Relations, Sizes, argument, name_of, shapes

# Bytes of a trial; what it takes is known before anything is allocated.
ROOM = 64 << 20
# The tangent of a loss; the tile takes it for 1.
TANGENT = 0.5
# Relative to the norm of the whole, by bytes of the type: each sum is rounded in another order.
TOLERANCE = {8: 1e-12, 4: 2e-5, 2: 3e-2, 1: 0.3}


class Differs(Exception):
    """A tile does not do what its region does, or nobody can tell."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Two graphs of equal inputs and outputs.

    region: the operators of the joint graph.  tile: the graph that is called.
    units: places of inputs that the tile gets for a tangent of 1.  alike: for each input the place of the first that
    holds the same value.  scaled: places of outputs that are multiplied by the tangent afterwards.  names: what the
    outputs are called.  room: bytes that all that stands at once may take.
    """

    region: fx.Graph
    tile: fx.GraphModule
    units: frozenset[int]
    alike: tuple[int, ...]
    scaled: frozenset[int]
    names: tuple[str, ...]
    room: int = ROOM

    def run(self) -> None:
        """Raises Differs, also where the two cannot be tried."""
        relations = Relations()
        for graph in (self.region, *_graphs(self.tile)):
            relations.read(graph)
        even: set[int] = set()
        kept: set[int] = set()
        while True:
            sizes = relations.smaller(even, kept)
            try:
                self._measure(sizes)
                return self._compare(sizes)
            except _Misfit as problem:
                more = {size for size in problem.sizes if sizes[size] != size}
                if not more:
                    raise Differs(f"it does not run on small data: {problem}") from problem
                if isinstance(problem.__cause__, NotImplementedError):
                    raise Differs(f"it cannot be tried on the CPU: {problem}") from problem
                kept |= more & even
                even |= more
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise Differs(f"it cannot be tried: {_first_line(error)}") from error

    def _measure(self, sizes: Sizes) -> None:
        """On fake tensors.  Raises Differs where the data would take more than the room."""
        with compat.really(), compat.fake_evaluation():
            inputs = [_empty(node.meta["val"], sizes) for node in self.tile.graph.find_nodes(op="placeholder")]
            dry = _Dry(sizes)
            want, got = dry.run(self.region, inputs), dry.run(self.tile.graph, inputs, self.tile)
            for name, one, other in zip(self.names, want, got, strict=True):
                if _look(one) != _look(other):
                    raise Differs(f"{name} is {_show(other)} in shards, {_show(one)} whole")
            size = dry.peak + sum(value.nbytes for value in want)
        if size > self.room:
            may = f"a trial may take {format_size(self.room)}"
            raise Differs(f"it cannot be tried: with its smallest sizes it takes {format_size(size)}, and {may}")

    def _compare(self, sizes: Sizes) -> None:
        values = [node.meta["val"] for node in self.tile.graph.find_nodes(op="placeholder")]
        run = _Run(sizes)
        for positive in (False, True):
            with compat.really(), torch.no_grad():
                drawn = zip(self.alike, values, strict=True)
                data = [_data(value, sizes, seed, positive) for seed, value in drawn]
                scaled = [item * TANGENT if place in self.units else item for place, item in enumerate(data)]
                want, got = run.run(self.region, scaled), run.run(self.tile.graph, data, self.tile)
                for place, name in enumerate(self.names):
                    _same(name, want[place], got[place] * TANGENT if place in self.scaled else got[place])
                if all(bool(torch.isfinite(value).all()) for value in want):
                    return  # else once more, with what has a logarithm


class _Misfit(Exception):
    """An operator that the smaller sizes do not suit, for all that is known.  sizes: those that it has to do with."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        self.sizes = {
            size for each in (node, *node.all_input_nodes) for shape in shapes(each.meta.get("val")) for size in shape
        }
        super().__init__(f"{node.name} {reason}")


class _Run:
    """Runs graphs, and those that they call, on smaller sizes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def run(self, graph: fx.Graph, inputs: Sequence[Any], owner: torch.nn.Module | None = None) -> tuple[Any, ...]:
        """What a graph returns.  owner: has the graphs that it calls."""
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
                except (_Misfit, MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception as error:  # whatever an operator raises on what does not suit it
                    if "can't allocate memory" in str(error):  # torch's allocator for the CPU raises RuntimeError
                        raise MemoryError(_first_line(error)) from error
                    raise _Misfit(node, f"fails: {_first_line(error)}") from error
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
        args, kwargs = self.sizes.told(node, args, kwargs)
        args, kwargs = tree_map(_placed, (args, kwargs))
        if name == "memgraph::shard_whole":
            return _unwritten(target(*args, **kwargs), *args[:2])
        if name in ("memgraph::shard_put", "memgraph::shard_add"):
            getattr(torch.ops.memgraph, name.removeprefix("memgraph::") + "_").default(*args, **kwargs)
            return args[0]
        if name in ("aten::view", "aten::_unsafe_view"):  # real strides are not always those that torch foresees
            return args[0].reshape(args[1])
        if name == "aten::mean":
            return self._mean(node, args, kwargs)
        try:
            return target(*args, **kwargs)
        except Exception as error:
            if not _no_kernel(error):
                raise
            return _in_float64(node, args, kwargs)

    def made(self, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        """What follows a node."""

    def _mean(self, node: fx.Node, args: tuple, kwargs: dict) -> torch.Tensor:
        """The sum by the count that a graph was written for: where a tile divides by a count, it is a number in it."""
        counted = math.prod(argument(node.target, node.args, {}, "self").meta["val"].shape)
        dims = argument(node.target, args, kwargs, "dim")
        whole, value = args[0], node.meta["val"]
        wide = torch.promote_types(value.dtype, torch.float32)
        keep = bool(argument(node.target, args, kwargs, "keepdim"))
        total = whole.sum(dims or None, keepdim=keep, dtype=wide) if dims else whole.sum(dtype=wide)
        return (total / (counted // max(1, value.numel()))).to(value.dtype)


class _Dry(_Run):
    """On fake tensors: each value against what it should look like, and the most bytes that stand at once."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.peak, self.outside = 0, 0
        self.known: dict[fx.GraphModule, tuple[Any, ...]] = {}

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
                raise _Misfit(node, f"is {_show(other)}, not {_show(one)} made small")


def _no_kernel(error: Exception) -> bool:
    """Whether an operator has no kernel for a type on the CPU; on fake tensors that is any RuntimeError."""
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _in_float64(node: fx.Node, args: tuple, kwargs: dict) -> Any:
    """What an operator gives on wider numbers, in the types that it has on the device: counts of integers, say."""

    def wide(item: Any) -> Any:
        return item.double() if isinstance(item, torch.Tensor) and item.dtype is not torch.bool else item

    try:
        made = node.target(*tree_map(wide, args), **tree_map(wide, kwargs))
    except Exception as error:
        raise NotImplementedError(f"has no kernel there: {_first_line(error)}") from error
    if isinstance(made, torch.Tensor):
        return made.to(node.meta["val"].dtype)
    return tuple(item.to(said.dtype) for item, said in zip(made, node.meta["val"], strict=True))


def _placed(item: Any) -> Any:
    return torch.device("cpu") if isinstance(item, torch.device) else item


def _graphs(module: fx.GraphModule) -> list[fx.Graph]:
    return [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]


def _last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By node, what nobody reads after it."""
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


def _look(value: torch.Tensor) -> tuple:
    strides = tuple(stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    return tuple(value.shape), strides, value.dtype


def _show(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}, stride {list(value.stride())}"


def _empty(value: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    return torch.empty_strided(sizes.shape(value.shape), sizes.stride(value.shape, value.stride()), dtype=value.dtype)


def _data(value: torch.Tensor, sizes: Sizes, seed: int, positive: bool) -> torch.Tensor:
    """Random numbers; integers, which may be positions of anything, are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    item, shape = _empty(value, sizes), sizes.shape(value.shape)
    repeated = tuple(1 if not stride else size for size, stride in zip(shape, item.stride(), strict=True))
    if value.dtype.is_floating_point:
        drawn = torch.randn(repeated, generator=generator, dtype=torch.float64)
        drawn = drawn * max(1, shape[-1]) ** -0.5 if len(shape) > 1 else drawn
        drawn = drawn.abs() if positive else drawn
    else:
        drawn = torch.randint(0, 2, repeated, generator=generator)
    own = item.as_strided(repeated, item.stride()).copy_(drawn)
    return own.as_strided(shape, item.stride())


def _unwritten(whole: torch.Tensor, first: torch.Tensor, dim: int) -> torch.Tensor:
    """The same, and what nobody has written yet is no value that a tile could make."""
    rest = whole.narrow(dim, first.shape[dim], whole.shape[dim] - first.shape[dim])
    rest.fill_(float("nan") if whole.dtype.is_floating_point else 77)
    return whole


def _same(name: str, want: torch.Tensor, got: torch.Tensor) -> None:
    if not want.dtype.is_floating_point:
        if not torch.equal(want, got):
            raise Differs(f"{name} differs in shards at {int((want != got).sum())} of {want.numel()} places")
        return
    odd = ~torch.isfinite(want)
    if bool(odd.any()):  # infinite or not a number at the same places (masked logits) is the same
        same = odd & ((want == got) | (want.isnan() & got.isnan()))
        want, got = want.masked_fill(same, 0), got.masked_fill(same, 0)
    size = float(torch.linalg.vector_norm(want, dtype=torch.float64))
    error = float(torch.linalg.vector_norm(got - want, dtype=torch.float64)) / (size or 1.0)
    if not error <= TOLERANCE[want.element_size()]:
        raise Differs(f"{name} in shards differs from the whole by {error:.2g} of its norm, on small data")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
