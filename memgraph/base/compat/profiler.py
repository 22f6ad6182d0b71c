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


def allocations(call: Any) -> tuple[Any, list[int]]:
    """What `call()` returns, and the bytes of each allocation (positive) and free (negative) on the CPU meanwhile.

    By the older of torch's two profilers: it starts in microseconds, and says nothing of it on the terminal. Only what
    this thread allocates counts. None may run when this is called.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

    # inputs' shapes, memory, stacks, flops, modules
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        result = call()
    finally:
        threads = _disable_profiler_legacy()
    return result, [
        int(event.cpu_memory_usage()) for thread in threads for event in thread if event.kind() == "memory_alloc"
    ]
