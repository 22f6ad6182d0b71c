"""torch's profilers."""

from __future__ import annotations

from typing import Any


def allocation_event_type() -> Any:
    """The tag of an allocation (or a free) among the events of `torch.profiler`'s event tree."""
    from torch._C._profiler import _EventType

    return _EventType.Allocation


def profiling() -> bool:
    """Whether a profiler of torch runs on this thread: a process has one, and a second would end it."""
    from torch._C._autograd import _profiler_enabled

    return bool(_profiler_enabled())


def start_allocations() -> None:
    """From now on, list what this thread allocates on the CPU, and what backwards that it calls do.

    By the older of torch's two profilers: it starts in microseconds, and says nothing of it on the terminal. None may
    run when this is called.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd import ProfilerConfig, ProfilerState, _enable_profiler_legacy

    # inputs' shapes, memory, stacks, flops, modules
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))


def stop_allocations() -> list[int]:
    """The bytes of each allocation (positive) and free (negative) since `start_allocations` on the same thread, in the
    order of time.

    Those of threads that work for this one are among them (gloo's, that copy for a collective). What was allocated
    before has no free among them, or one with the size that a block had at its address in an earlier recording.
    """
    from torch.autograd import _disable_profiler_legacy

    events = [event for thread in _disable_profiler_legacy() for event in thread if event.kind() == "memory_alloc"]
    if events and any(event.thread_id() != events[0].thread_id() for event in events):
        first = events[0]
        events.sort(key=first.cpu_elapsed_us)
    return [int(event.cpu_memory_usage()) for event in events]


def allocations(call: Any) -> tuple[Any, list[int]]:
    """What `call()` returns, and the bytes of each allocation (positive) and free (negative) on the CPU meanwhile."""
    start_allocations()
    try:
        result = call()
    finally:
        changes = stop_allocations()
    return result, changes
