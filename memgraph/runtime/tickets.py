"""Transfers and offloaded values as tensors: int64[1] on the CPU, whose storage owns what it stands for.

The tensor holds an id; the object is found by it for as long as a tensor of it lives. When autograd drops the last
one, the copy is given up or the slot goes back.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import torch

from memgraph.base.errors import OffloadError

_ids = itertools.count(1)
_owned: dict[int, Any] = {}


class _Handle(ctypes.c_int64 * 1):  # type: ignore[misc]  # an array type, made by a product
    """The memory of a ticket: a number, by which what the ticket owns is found for as long as this object lives."""

    _forget: Callable[..., Any] = staticmethod(_owned.pop)  # globals may be gone when the last tickets die

    def __del__(self) -> None:
        self._forget(self[0], None)


def ticket(owned: Any) -> torch.Tensor:
    """A tensor (int64[1], CPU) that owns an object, which dies with the last reference to the tensor's storage.

    That can happen on any thread.
    """
    handle = _Handle(next(_ids))
    _owned[handle[0]] = owned
    return torch.frombuffer(handle, dtype=torch.int64)


def content(ticket: torch.Tensor, kind: type) -> Any:
    """What a ticket owns. Raises OffloadError where it is not a ticket of that kind, or no longer one."""
    number = ticket.item()
    owned = _owned.get(number)
    if not isinstance(owned, kind):
        raise OffloadError(
            f"{number} is no ticket of a {kind.__name__}, or not any more: a copy stands for what was saved "
            "in the forward. torch.autograd.graph.saved_tensors_hooks around the call make one where they clone or "
            "store what they pack. Call the compiled function outside of them, let them return CPU tensors of dtype "
            "int64 as they are, or switch option 'offload' off"
        )
    return owned
