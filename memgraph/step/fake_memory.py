"""Bytes of fake tensors: what containers hold, and what is alive while operators run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from memgraph.base import compat
from memgraph.base.sizes import round_up
from memgraph.facts import kernel_scratch

_LATE = 1000  # what a count of steps, or any other number that only data tell, is taken for


class CannotRehearse(Exception):
    """Code that cannot, or must not, run on fake tensors; the message says why."""


def granularity(device: torch.device) -> int:
    """The bytes that an allocation on `device` is a multiple of."""
    return 512 if device.type == "cuda" else 1


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether a tensor is on `device`, which may leave out its number."""
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def fake_of(tensor: torch.Tensor) -> torch.Tensor:
    """A fake of a tensor, of a distributed one a fake of the part that is here."""
    tensor = compat.local(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in containers, of wrappers those that they are made of."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            if hasattr(item, "__tensor_flatten__"):
                pending.extend(getattr(item, name) for name in item.__tensor_flatten__()[0])
            else:
                yield item
        elif isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            pending.extend(item)


def storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {compat.storage_id(tensor) for tensor in tensors}


def bytes_of(value: Any, device: torch.device, without: Iterable[int] = ()) -> int:
    """Bytes on `device` of the tensors in `value`, each storage once, storages in `without` not at all."""
    sizes = {compat.storage_id(t): t.untyped_storage().nbytes() for t in tensors_in(value) if is_on(t, device)}
    return sum(round_up(sizes[key], granularity(device)) for key in sizes.keys() - set(without))


class FakeMemory(compat.operator_mode()):  # type: ignore[misc]
    """Live bytes on a device while operators run within it, by the storages that they make.

    The peak has the scratch of kernels for which there is a rule, such as those of products. Operators that write in
    place do not run: they allocate nothing.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.level = self.peak = self.operators = 0
        self._device, self._granularity = device, granularity(device)
        self._alive: dict[int, weakref.ref] = {}

    def see(self, value: Any) -> None:
        """Take in the tensors in `value`, a tensor or containers of them."""
        for tensor in tensors_in(value):
            key = compat.storage_id(tensor)
            if key not in self._alive and is_on(tensor, self._device):
                storage = tensor.untyped_storage()
                size = round_up(storage.nbytes(), self._granularity)
                self._alive[key] = weakref.ref(storage, functools.partial(self._died, key, size))
                self.level += size
        self.peak = max(self.peak, self.level)

    def _died(self, key: int, size: int, _: object) -> None:
        if self._alive.pop(key, None) is not None:
            self.level -= size

    def close(self) -> None:
        self._alive.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        if func in _NUMBERS:
            return _number(args[0].dtype)
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(...): it has made a real one
            made = fake_of(args[0])
        elif _writes_in_place(func):  # and so allocates nothing, and need not run
            return args[0] if isinstance(args[0], torch.Tensor) else None
        else:
            made = func(*args, **(kwargs or {}))
        self.see(made)
        on_device = any(is_on(tensor, self._device) for tensor in tensors_in(made))
        if on_device and kernel_scratch.has_rule(func, self._device.type):
            scratch = kernel_scratch.of_operator(func, args, kwargs or {}, made, self._device.type)
            self.peak = max(self.peak, self.level + scratch)
        return made


_NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def _number(dtype: torch.dtype) -> Any:
    """What stands for a number that only data tell. A bool is False, as that of a check for overflow or NaN."""
    if dtype is torch.bool:
        return False
    return _LATE if not dtype.is_floating_point and not dtype.is_complex else float(_LATE)


@functools.cache
def _writes_in_place(func: Any) -> bool:
    if func.namespace == "c10d":
        raise CannotRehearse("its step() talks to other processes")
    name = func.name().partition("::")[2].partition(".")[0]
    changes_shape = torch.Tag.inplace_view in func.tags
    return func.namespace == "aten" and name.endswith("_") and not name.endswith("__") and not changes_shape
