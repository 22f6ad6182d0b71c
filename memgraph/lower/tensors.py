"""Tensors without contents. Their storages report when the last tensor that lies in them goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memgraph.base import compat
from memgraph.base.compat import tree_map


class Storage:
    """Bytes that stand until the last tensor that lies in them goes."""

    __slots__ = ("name", "bytes", "_log", "holds")

    def __init__(self, name: int | str, nbytes: int, log: Callable[[str, int], None] | None):
        self.name, self.bytes, self._log = name, nbytes, log
        self.holds: Any = None  # another storage that this one keeps allocated, until somebody takes it over

    @property
    def counted(self) -> bool:
        """Whether its bytes lie on the device that is watched, and are freed by the call."""
        return self._log is not None

    def __del__(self) -> None:
        if self._log is not None:
            self._log(str(self.name), -self.bytes)


@dataclass(frozen=True, eq=False)
class Shadow:
    """A tensor without contents. Its offset in the storage does not matter here."""

    storage: Storage
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Opaque:
    """A value that owns no memory here: a kernel, a stream, an event, a constant that the module holds."""

    name: str


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """The number of entries from a tensor's first to its last one."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def view(tensor: Shadow, size: Sequence[int], stride: Sequence[int], *_: int) -> Shadow:
    """The same storage with another layout."""
    return replace(tensor, size=tuple(size), stride=tuple(stride))


def part(tensor: Shadow, where: slice) -> Shadow:
    """The entries of the first dimension within `where`, in the same storage."""
    length = len(range(*where.indices(tensor.size[0])))
    return replace(tensor, size=(length, *tensor.size[1:]))


def reshaped(tensor: Shadow, size: Sequence[int]) -> Shadow:
    """The same entries in another size.  Raises ValueError where they have gaps, or are not as many."""
    stride, step = list[int](), 1
    for length in reversed(tensor.size):
        stride.insert(0, step)
        step *= length
    gaps = any(n > 1 and mine != theirs for n, mine, theirs in zip(tensor.size, tensor.stride, stride, strict=True))
    if gaps or math.prod(size) != step:
        raise ValueError(f"found size {tensor.size} and stride {tensor.stride}")
    return view(tensor, size, [math.prod(size[place + 1 :]) for place in range(len(size))])


def operator_outputs(
    op: Callable[..., Any], args: Any, kwargs: Any, new_storage: Callable[[int, str], Storage], mode: Any = None
) -> Any:
    """What an operator returns, found on fake tensors. Outputs that alias an input share its storage.

    new_storage: makes a storage of so many bytes on a device.  mode: the fake tensors' (`compat.fake_mode`).
    Raises TypeError for an argument without a known shape, and what the operator raises.
    """
    with compat.fake_evaluation(mode):
        fakes: list[torch.Tensor] = []  # kept alive, so that no two have the same id
        storages: dict[int, Storage] = {}

        def to_fake(value: Any) -> Any:
            if isinstance(value, Opaque):
                raise TypeError(f"the shape of {value.name} is not known")
            if not isinstance(value, Shadow):
                return value
            fake = torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
            fakes.append(fake)
            storages[compat.storage_id(fake)] = value.storage
            return fake

        def storage_of(value: torch.Tensor) -> Storage:
            key = compat.storage_id(value)
            if key not in storages:
                storages[key] = new_storage(int(value.untyped_storage().nbytes()), str(value.device))
            return storages[key]

        # Not recursive: a function that names itself is a cycle, and storages would outlive this call.
        def from_fake(value: Any) -> Any:
            if isinstance(value, torch.SymInt):
                return int(value)
            if not isinstance(value, torch.Tensor):
                return value
            if value.layout is torch.sparse_coo:  # it has no bytes of its own; Inductor says that its strides are 0
                storage, stride = Storage("sparse", 0, None), (0,) * value.dim()
                storage.holds = [storage_of(part) for part in (value._indices(), value._values())]
            else:
                storage, stride = storage_of(value), tuple(map(int, value.stride()))
            return Shadow(storage, tuple(map(int, value.size())), stride, value.dtype, str(value.device))

        outputs = op(*_with_bags(op, tree_map(to_fake, args)), **tree_map(to_fake, kwargs))
        return tree_map(from_fake, outputs)


def _with_bags(op: Callable[..., Any], args: list[Any]) -> list[Any]:
    """The arguments of an operator, with the table of bags that `_embedding_bag_backward` makes for itself.

    Where the forward has left that table empty (each sum of bags does), ATen fills it within the call. The fake kernel
    leaves it empty, and its sparse gradient has no rows.
    """
    if not str(op).startswith("aten._embedding_bag_backward"):
        return args
    _, indices, _, table, *_ = args
    return [*args[:3], torch.empty_like(indices) if table.numel() == 0 else table, *args[4:]]


def resolve(path: str) -> Callable[..., Any]:
    """An operator by its name in the wrapper; `extern_kernels.convolution` is `aten.convolution`."""
    short = {"aten": "aten", "extern_kernels": "aten", "inductor_ops": "inductor", "_quantized": "_quantized"}
    first, *rest = path.removeprefix("torch.ops.").split(".")
    found = getattr(torch.ops, short.get(first, first))
    for part in rest:
        found = getattr(found, part)
    return found
