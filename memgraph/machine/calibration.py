"""Measure the figures of a device: its products, its memory, its kernels' overhead, its link to the host."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from memgraph.machine.hardware import DTYPES, Attention, Device, Hardware, capacity_of, device_name, known_kind
from memgraph.runtime.host import HostPool
from memgraph.runtime.settings import Settings
from memgraph.runtime.streams import exact
from memgraph.runtime.value import OffloadedValue

Clock: TypeAlias = Callable[[], float]


def calibrate_device(device: Device, clock: Clock = time.perf_counter) -> Hardware:
    """Measure the figures of `device`, in a few seconds. Other work on it meanwhile makes them worse.

    Four small kernels are compiled by Inductor.

    clock: `time.process_time` leaves out what other processes take of a CPU, where one thread computes.
    Raises ValueError for a device that is neither CUDA nor the CPU, OffloadError where the host pool is refused, and
    what torch raises where the device is missing.
    """
    device = known_kind(device)
    cuda = device.type == "cuda"

    # Larger than any cache on the way to memory.
    source = torch.zeros((1 << 30 if cuda else 1 << 28) // 4, device=device)
    target = torch.empty_like(source)
    seconds = functools.partial(_seconds, device=device, clock=clock)
    copy = seconds(lambda: target.copy_(source))
    exp = seconds(lambda: torch.exp(source, out=target))
    tiny = torch.zeros(1, device=device)
    link_out, link_in = _link(source, target, device, clock)
    truth_time, random_time, put_time = _entry_times(device, clock)
    return Hardware(
        name=device_name(device),
        device=device.type,
        flops=tuple((name, _matmul_rate(getattr(torch, name), device, clock)) for name in DTYPES),
        memory_bandwidth=2 * source.nbytes / copy,
        transcendental_rate=source.numel() / exp,
        kernel_overhead=seconds(lambda: tiny.add_(1)),
        capacity=capacity_of(device),
        link_out=link_out,
        link_in=link_in,
        measured=True,
        attention=_attention_rates("causal", device, clock),
        masked_attention=_attention_rates("masked", device, clock),
        whole_attention=_attention_rates("whole", device, clock),
        truth_time=truth_time,
        random_time=random_time,
        put_time=put_time,
    )


def _seconds(
    fn: Callable[[], object], device: torch.device, clock: Clock, sample: float = 0.02, samples: int = 5
) -> float:
    """The median time of one call of `fn`, over samples of enough calls to last `sample` seconds each."""

    def timed(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            fn()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - start) / calls

    timed(1)  # what only the first call costs
    calls = max(1, round(sample / timed(3)))
    return statistics.median(timed(calls) for _ in range(samples))


def _entry_times(device: torch.device, clock: Clock) -> tuple[float, float, float]:
    """Seconds that an entry of dtype bool, stored and loaded, a random number, and a number that is added to an entry
    of a table by its place cost in Inductor's kernels.

    Besides the bytes: from the time of a kernel with them that of one without is taken.
    """
    width, rows = 4, 32
    numbers = torch.randn(1 << (26 if device.type == "cuda" else 21), device=device)
    truths = numbers <= 0
    places = torch.arange(numbers.numel() // width, device=device) // 64 % rows  # neighbours share a place

    def with_truths(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(truths, 0.0, x), x <= 0

    def without(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(x <= 0, 0.0, x), x + numbers

    def with_draws(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(torch.rand_like(x) <= 0.5, 0.0, x), x + numbers

    def with_puts(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(rows, width).index_put((places,), x.view(-1, width), accumulate=True)

    def without_puts(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, width).sum(0)

    def seconds(fn: Callable[[torch.Tensor], Any]) -> float:
        compiled = torch.compile(fn, dynamic=False, fullgraph=True)
        return _seconds(lambda: compiled(numbers), device, clock)

    def each(fn: Callable[[torch.Tensor], Any], plain: float) -> float:
        return max(0.0, seconds(fn) - plain) / numbers.numel()

    plain = seconds(without)
    return each(with_truths, plain), each(with_draws, plain), each(with_puts, seconds(without_puts))


def _link(
    source: torch.Tensor, target: torch.Tensor, device: torch.device, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Bytes/s to the host and back, by the runtime's own copies."""
    pool = HostPool(exact(device))
    reservation = pool.reserve(source.nbytes)
    held: list[OffloadedValue] = []

    def out() -> None:
        held.clear()
        copy = pool.offload("calibrate", source, Settings())
        copy.finish()
        held.append(copy.value)

    try:
        seconds_out = _seconds(out, device, clock)
        seconds_in = _seconds(lambda: pool.reload(held[0], target).finish(), device, clock)
    finally:
        held.clear()
        pool.release(reservation)
    return source.nbytes / seconds_out, source.nbytes / seconds_in


def _matmul_rate(dtype: torch.dtype, device: torch.device, clock: Clock) -> float:
    """FLOP/s of a square product, of growing size until one takes 20 ms or has the largest size."""
    largest = 8192 if device.type == "cuda" else 1024
    size = 128
    while True:
        left, right, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
        seconds = _seconds(functools.partial(torch.mm, left, right, out=out), device, clock)
        if size == largest or seconds > 0.02:
            return 2 * size**3 / seconds
        size *= 2


def _attention_rates(kind: Attention, device: torch.device, clock: Clock) -> tuple[tuple[str, float], ...]:
    """FLOP/s of one kind of attention, by dtype name."""
    return tuple((name, _attention_rate(getattr(torch, name), kind, device, clock)) for name in DTYPES)


def _attention_rate(dtype: torch.dtype, kind: Attention, device: torch.device, clock: Clock) -> float:
    """FLOP/s of attention and its backward, of growing length until it takes 20 ms or has the largest length."""
    largest, heads, width = (4096, 16, 64) if device.type == "cuda" else (2048, 4, 64)
    length = 128
    while True:
        shape = (1, heads, length, width)
        query, key, value, gradient = (torch.randn(shape, device=device).to(dtype) for _ in range(4))
        given = [tensor.requires_grad_() for tensor in (query, key, value)]

        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        mask = torch.zeros(length, length, device=device).masked_fill_(~seen, -torch.inf).to(dtype)
        how = {"causal": {"is_causal": True}, "masked": {"attn_mask": mask}, "whole": {}}[kind]

        def step(
            given: list[torch.Tensor] = given, gradient: torch.Tensor = gradient, how: dict[str, Any] = how
        ) -> None:
            out = torch.nn.functional.scaled_dot_product_attention(*given, **how)
            torch.autograd.grad(out, given, gradient)

        with torch.enable_grad():
            seconds = _seconds(step, device, clock)
        if length == largest or seconds > 0.02:
            # Two products of queries and keys in the forward, five in the backward, of the pairs that are looked at.
            pairs = length * (length + 1) // 2 if kind == "causal" else length**2
            return 14 * heads * width * pairs / seconds
        length *= 2
