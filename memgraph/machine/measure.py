"""Allocated bytes on a device: now, and at the peak of a call.

On CUDA these are the caching allocator's own counters. On the CPU, where there are none, the peak is the
highest running sum of the profiler's allocation events, exact to the byte for what torch's allocator hands
out (scratch memory inside a kernel that does not come from it is invisible).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from memgraph.base import compat
from memgraph.base.instances import instances
from memgraph.runtime.host import own_memory

Device: TypeAlias = torch.device | str | int | None


class Counters(NamedTuple):
    """What the caching allocator counts on a CUDA device, in bytes."""

    allocated: int
    """Of whole blocks."""
    highest: int
    """The same at its highest since the statistics were last reset."""
    requested: int
    """What was asked for of these."""

    @property
    def uncut(self) -> int:
        """Of the blocks that are larger than what was asked for."""
        return self.allocated - self.requested


def measure_peak(fn: Callable[[], object], device: Device = None) -> int:
    """Return the highest number of bytes allocated on `device` while `fn()` runs.

    What was allocated before counts, so the result is comparable with a budget. `device` is the CUDA device
    where there is one, else the CPU. What `fn` raises propagates; its result is dropped. Collects garbage
    first. Raises ValueError for a device that is neither.

    CUDA: resets the peak statistics of the device, and waits for its work before and after.

    CPU: memory that was allocated before and is freed within `fn()` (gradients set to None, say) mostly still
    counts: the profiler reports such a free only where it remembers the address from an earlier session. Free it
    before the call to have it exact. So does what only C++ holds: DistributedDataParallel makes its buckets anew in the
    second step, and both count there. Do not call this inside a torch.profiler session: a process has one, and this
    would end it.
    """
    resolved = _resolve(device)
    gc.collect()
    before = allocated_bytes(resolved)
    return before + _peak_above(fn, resolved)


def peak_above_start(fn: Callable[[], object], device: Device = None) -> int:
    """Return the highest number of bytes allocated on `device` during `fn()`, less those allocated before.

    As `measure_peak` in all else; never negative.
    """
    resolved = _resolve(device)
    gc.collect()
    return _peak_above(fn, resolved)


def allocated_bytes(device: Device = None) -> int:
    """Return the number of bytes that are allocated on `device` now.

    CUDA: what the caching allocator has handed out. CPU: the storages of all dense tensors that Python can
    reach, each once, and of their gradients, and the buckets of DistributedDataParallel; what else only C++ holds is
    not seen. Fake and meta tensors have no bytes, and the host memory of the tiers is no part of it. Raises ValueError
    for any other kind of device.
    """
    resolved = _resolve(device)
    if resolved.type == "cuda":
        return counters(resolved).allocated
    found: dict[int, int] = {}  # by address
    buckets = 0
    for holder in instances(torch.Tensor, DistributedDataParallel):
        if isinstance(holder, torch.Tensor):
            found.update(_cpu_storage(holder))
        else:
            buckets += compat.bucket_bytes(holder, "cpu")
    return sum(found.values()) + buckets - sum(found.get(address, 0) for address in own_memory())


def counters(device: torch.device) -> Counters:
    """What is allocated on a CUDA device.

    torch makes a dictionary of all counters, some 250, for whoever asks for one: it is the second choice.
    """
    ask = compat.allocator_counters()
    numbers = None if ask is None else ask(torch.cuda.current_device() if device.index is None else device.index)
    if numbers is not None:
        return Counters(*numbers)
    found = torch.cuda.memory_stats_as_nested_dict(device)
    allocated, requested = (found.get(kind, {}).get("all", {}) for kind in ("allocated_bytes", "requested_bytes"))
    return Counters(allocated.get("current", 0), allocated.get("peak", 0), requested.get("current", 0))


def _resolve(device: Device) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type not in ("cuda", "cpu"):
        raise ValueError(f"memory of {resolved} cannot be measured; allowed: cuda, cpu")
    return resolved


def _peak_above(fn: Callable[[], object], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        fn()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    standing = {address: size for tensor in live_tensors() for address, size in _cpu_storage(tensor)}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        fn()
    events = session.profiler.kineto_results.experimental_event_tree()
    return max(accumulate(_cpu_changes(events, standing), initial=0))


def _cpu_changes(events: Iterable[Any], standing: Mapping[int, int]) -> Iterator[int]:
    """The bytes of each allocation (positive) and free (negative) on the CPU, in the order of time.

    Of a block that it did not see made, the profiler says the size that another one had there, in an earlier session.
    standing: address and bytes of what was allocated before; a free of what it does not have counts for nothing.
    """
    alive = dict(standing)
    for address, size in _cpu_allocations(events):
        if size > 0:
            alive[address] = size
            yield size
        else:
            yield -alive.pop(address, 0)


def _cpu_allocations(events: Iterable[Any]) -> list[tuple[int, int]]:
    """The address and the bytes of each allocation (positive) and free (negative) on the CPU, in the order of time."""
    kind = compat.allocation_event_type()
    found = []
    pending = list(events)
    while pending:  # not recursive: events nest as deeply as the calls that made them
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == kind and event.typed[1].device.type == "cpu":
            found.append((event.start_time_ns, event.typed[1].ptr, event.typed[1].alloc_size))
    return [(address, size) for _, address, size in sorted(found, key=lambda event: event[0])]


def live_tensors() -> Iterator[torch.Tensor]:
    """The tensors that Python can reach."""
    return instances(torch.Tensor)


def _cpu_storage(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """(address, bytes) of the storage of `tensor` and of its gradient, where they have one on the CPU."""
    try:
        storage = tensor.untyped_storage()
        # A fake tensor says that it is on the CPU; its storage says meta. A wrapper's has no address.
        if storage.device.type == "cpu" and storage.data_ptr():
            yield storage.data_ptr(), storage.nbytes()
        gradient = tensor.grad if tensor.is_leaf else None  # asked of other values, it warns
    except Exception:  # fake and sparse tensors, and subclasses that refuse
        return
    if gradient is not None:
        yield from _cpu_storage(gradient)
