"""The operators of Dynamo's graph run on the CPU, with large tensors held at a few places only.

A mask of 65,536 x 65,536 is made of tensors that are small (positions, counts of them) by operators that work entry by
entry. The small ones are computed whole; of a tensor that is too large for that, each long dimension is held at 64
places, and such an operator gives the same for these places as for all. To Python a large tensor is one on the meta
device, which has its shape; what stands at its places is kept beside it. An operator that is not known to work place by
place ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.verify.execute import first_line

# So many entries a tensor may have that is computed whole.
WHOLE = 1 << 22
# Of a longer dimension so many places are looked at, where a tensor is large.
PLACES = 64

_SAME = "detach alias clone _to_copy lift_fresh unsqueeze squeeze permute transpose t".split()
_LIKE = "full_like ones_like zeros_like".split()
# Of what these are given only the shape and the type count.
_TYPED = (*_LIKE, "new_full", "new_ones", "new_zeros")
_SIZED = "expand view _unsafe_view full ones zeros new_full new_ones new_zeros".split()


class Untried(Exception):
    """Operators that cannot be run at some places only."""


class Sampler(compat.operator_mode()):  # type: ignore[misc]
    """Runs the operators of its block on the CPU."""

    def __init__(self, numbers: Collection[int]) -> None:
        """numbers: constants of the graph; places around them are among those that are looked at."""
        super().__init__()
        self.numbers = numbers
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By its identity, a large tensor and its entries."""
        self._places: dict[int, torch.Tensor] = {}

    def places(self, length: int) -> torch.Tensor:
        """The places of a dimension that are looked at, in order."""
        if length <= PLACES:
            return torch.arange(length)
        if length not in self._places:
            near = {place + step for place in (0, length // 2, length, *self.numbers) for step in (-2, -1, 0, 1)}
            near |= {length - 1 - number for number in self.numbers}
            chosen = sorted(place for place in near if 0 <= place < length)
            some = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[: PLACES // 2]
            drawn = torch.randperm(length, generator=torch.Generator().manual_seed(0))[:PLACES].tolist()
            found = {0, length - 1, *(chosen[n] for n in some.tolist())}
            found |= set(drawn[: PLACES - len(found)])
            self._places[length] = torch.tensor(sorted(found))
        return self._places[length]

    def at_places(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor at the places of its dimensions.  Raises Untried for one whose contents are not known."""
        if tensor.is_meta:
            if id(tensor) not in self._held:
                raise Untried("it reads data")
            return self._held[id(tensor)][1]
        for dim, length in enumerate(tensor.shape):
            if length > PLACES:
                tensor = tensor.index_select(dim, self.places(length))
        return tensor

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        has_device = any(known.name == "device" for known in operator._schema.arguments)
        on_cpu = {"device": torch.device("cpu")} if has_device else {}
        on_meta = {"device": torch.device("meta")} if has_device else {}
        given = [value for value in compat.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        name = operator._schema.name.removeprefix("aten::")
        if name not in _TYPED and any(value.is_meta and id(value) not in self._held for value in given):
            raise Untried("it reads data")
        shape_args, shape_kwargs = compat.tree_map(_shadow, (args, kwargs))
        shapes = operator(*shape_args, **shape_kwargs | on_meta)
        outputs = [value for value in compat.tree_leaves(shapes) if isinstance(value, torch.Tensor)]
        known = all(not value.is_meta for value in given)
        if known and all(value.numel() <= WHOLE for value in outputs):
            return operator(*args, **kwargs | on_cpu)
        if not isinstance(shapes, torch.Tensor):
            raise Untried(f"{operator._schema.name} makes several tensors")
        found = self._some(operator, name, args, kwargs | on_cpu)
        if tuple(found.shape) != tuple(len(self.places(length)) for length in shapes.shape):
            raise Untried(f"{operator._schema.name} makes another shape of some places")
        if all(length <= PLACES for length in shapes.shape):  # then that is all of it
            return found
        self._held[id(shapes)] = shapes, found
        return shapes

    def _some(self, operator: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """What an operator makes at the places of its output."""
        if torch.Tag.pointwise in operator.tags or name in _SAME:
            args, kwargs = compat.tree_map(self._reduced, (args, dict(kwargs)))
            return operator(*args, **kwargs)
        if name in _LIKE:
            shape = [len(self.places(length)) for length in args[0].shape]
            return operator(torch.empty(shape, dtype=args[0].dtype), *args[1:], **kwargs)
        if name in _SIZED:
            place = 0 if name in ("full", "ones", "zeros") else 1
            size = [length if length < 0 else len(self.places(length)) for length in args[place]]
            source = () if place == 0 else (self._source(name, args[0]),)
            return operator(*source, size, *args[place + 1 :], **kwargs)
        if name == "repeat" and all(1 in pair for pair in zip(args[0].shape[::-1], args[1][::-1], strict=False)):
            return operator(self.at_places(args[0]), [len(self.places(times)) for times in args[1]], **kwargs)
        if name in ("tril", "triu"):
            return self._triangle(name, *args, **kwargs)
        raise Untried(f"{operator._schema.name} is not known to work place by place")

    def _source(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that an operator with sizes works on; of `new_ones` and the like only the type counts."""
        return torch.empty(0, dtype=tensor.dtype) if name in _TYPED else self.at_places(tensor)

    def _triangle(self, name: str, tensor: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
        rows, columns = (self.places(length) for length in tensor.shape[-2:])
        away = columns - rows[:, None]
        kept = away <= diagonal if name == "tril" else away >= diagonal
        held = self.at_places(tensor)
        return torch.where(kept, held, torch.zeros((), dtype=held.dtype))

    def _reduced(self, value: Any) -> Any:
        return self.at_places(value) if isinstance(value, torch.Tensor) else value


def _shadow(value: Any) -> Any:
    """A tensor without contents."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def run(node: fx.Node, sampler: Sampler, at: Callable[[Any], int]) -> torch.Tensor:
    """A tensor of Dynamo's graph, made of constants: whole, or on the meta device and known to the sampler.

    at: the number for a symbolic size.  Raises Untried where it is made of data, or cannot be run so.
    """
    needed, pending = {node}, [node]
    while pending:
        part = pending.pop()
        new = set() if _is_data(part) else set(part.all_input_nodes) - needed
        needed |= new
        pending += new
    values: dict[fx.Node, Any] = {}
    with compat.really(), torch.no_grad(), sampler:
        for part in node.graph.nodes:
            if part in needed:
                try:
                    values[part] = _value(part, values, at)
                except Untried:
                    raise
                except Exception as error:
                    raise Untried(f"{part.name} does not run: {type(error).__name__}: {first_line(error)}") from error
    return values[node]


def _is_data(node: fx.Node) -> bool:
    """Whether a value is given and not computed: an input, a symbolic size, or a tensor that requires a gradient."""
    value = node.meta.get("example_value")
    learned = isinstance(value, torch.Tensor) and value.requires_grad
    return node.op not in ("call_function", "call_method") or learned or compat.is_size(value)


def _value(node: fx.Node, values: Mapping[fx.Node, Any], at: Callable[[Any], int]) -> Any:
    seen = node.meta.get("example_value")
    if compat.is_size(seen):
        return at(seen)
    if _is_data(node):
        if not isinstance(seen, torch.Tensor):
            raise Untried(f"{node.name} is no tensor")
        with compat.really():  # out of the sampler, which would run this on the CPU
            return torch.empty([at(length) for length in seen.shape], dtype=seen.dtype, device="meta")
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    args, kwargs = compat.tree_map(_on_cpu, (args, kwargs))
    kwargs = dict(kwargs) | ({"device": torch.device("cpu")} if "device" in kwargs else {})
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _on_cpu(item: Any) -> Any:
    return torch.device("cpu") if isinstance(item, torch.device) else item
