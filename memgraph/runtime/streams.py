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

Event = Any  # torch.Event, or None where there is nothing to wait for


class _Selected(contextlib.AbstractContextManager[None]):
    """Within it a stream is the calling thread's, and so is its device.

    As `torch.cuda.stream`, in a fifth of its time: copies select a stream twice a value. `with` on a torch.Stream notes
    in the stream what was selected before, and a lane's stream is selected by several threads at once.
    """

    def __init__(self, stream: torch.Stream):
        self.stream = stream

    def __enter__(self) -> None:
        self.device = torch.accelerator.current_device_index()
        self.before = torch.accelerator.current_stream(self.stream.device_index)
        torch.accelerator.set_stream(self.stream)

    def __exit__(self, *raised: object) -> None:
        torch.accelerator.set_stream(self.before)
        if self.device != self.stream.device_index:
            torch.accelerator.set_device_index(self.device)


class Lane:
    """Copies in one direction on one device, in the order in which they are given."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.Stream(device) if device.type == "cuda" else None

    def copy(self, target: torch.Tensor, source: torch.Tensor, *after: Event) -> Event:
        """Copy `source` to `target` once `after` has happened; return the event of its end."""
        if self.stream is None:
            target.copy_(source)
            return None
        for event in after:
            if event is not None:
                self.stream.wait_event(event)
        with _Selected(self.stream):
            target.copy_(source, non_blocking=True)
        return self.stream.record_event()

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Within it the current device and stream of this thread are the lane's; on the CPU nothing changes."""
        return contextlib.nullcontext() if self.stream is None else _Selected(self.stream)

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
    if not isinstance(device, torch.device):
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
    return torch.accelerator.current_stream(device.index).record_event() if device.type == "cuda" else None


def wait(device: torch.device, event: Event) -> None:
    """Make the calling thread's compute stream wait for `event`."""
    if event is not None:
        torch.accelerator.current_stream(device.index).wait_event(event)


def join(event: Event) -> None:
    """Make the calling thread itself wait for `event`."""
    if event is not None:
        event.synchronize()


def _in_a_child() -> None:
    """Make the lock anew in a forked child: the thread that may have held it does not exist there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_a_child)
