"""The copy streams of a device: one a direction. On the CPU there are none, and a copy is done when it returns.

Compute and copies wait for each other by events alone; only `join` makes a thread of the host wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch

Event = Any  # torch.cuda.Event, or None where there is nothing to wait for


class Lane:
    """Copies in one direction on one device, in the order in which they are given."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, target: torch.Tensor, source: torch.Tensor, *after: Event) -> Event:
        """Copy `source` to `target` once `after` has happened; return the event of its end."""
        if self.stream is None:
            target.copy_(source)
            return None
        for event in after:
            if event is not None:
                self.stream.wait_event(event)
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            return self.stream.record_event()

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Within it the current device and stream of this thread are the lane's; on the CPU nothing changes."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def protect(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor from being reused before this lane has done its work so far.

        For a copy that nobody will wait for.
        """
        if self.stream is not None:
            tensor.record_stream(self.stream)


@dataclass(frozen=True)
class Lanes:
    """Both directions of one device."""

    out: Lane
    back: Lane


_lanes: dict[torch.device, Lanes] = {}
_lock = threading.Lock()


def exact(device: torch.device | str) -> torch.device:
    """The device with its index, for use as a key: "cuda" may be the same place as "cuda:0", and is not equal to it."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "cpu" else device


def lanes(device: torch.device) -> Lanes:
    """The copy streams of `device`, made once in a process."""
    with _lock:
        if device not in _lanes:
            _lanes[device] = Lanes(Lane(device), Lane(device))
        return _lanes[device]


def mark(device: torch.device) -> Event:
    """The event of all that the calling thread's compute stream has been given so far."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait(device: torch.device, event: Event) -> None:
    """Make the calling thread's compute stream wait for `event`."""
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)


def join(event: Event) -> None:
    """Make the calling thread itself wait for `event`."""
    if event is not None:
        event.synchronize()


def _in_a_child() -> None:
    """Make the lock anew in a forked child: the thread that may have held it does not exist there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_a_child)
