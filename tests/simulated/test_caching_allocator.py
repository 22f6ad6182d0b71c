"""The policy that plans are counted by, against torch's own caching allocator."""

import random

import pytest
import torch

from memgraph.base import compat
from memgraph.machine.caching_allocator import CachingAllocator
from tests.simulated.forked import on_the_device

pytestmark = pytest.mark.smoke
MIB = 1024**2


def test_any_order_of_tensors():
    """In a process of its own: what other tests have left in a segment would be found there."""
    assert on_the_device(differences, list(range(8))) == []


def differences(seeds: list[int]) -> list[tuple[int, int]]:
    """The seeds, and for each the step, at which what is counted differs from what torch's allocator has."""
    found = ((seed, first_difference(seed)) for seed in seeds)
    return [(seed, step) for seed, step in found if step is not None]


def first_difference(seed: int) -> int | None:
    """Sizes differ all, since it is the addresses that decide between equal blocks."""
    torch.cuda.init()  # there are no statistics before
    torch.cuda.empty_cache()
    start = torch.cuda.memory_stats()
    draw, mine, live = random.Random(seed), CachingAllocator(), {}
    for step in range(400):
        if live and draw.random() < 0.45:
            name = draw.choice(sorted(live))
            del live[name]
            mine.free(name)
        else:
            size = draw.choice([2000, 300_000, 3 * MIB, 9 * MIB, 40 * MIB]) + 512 * draw.randrange(4000)
            live[step] = torch.empty(size, dtype=torch.uint8, device="cuda")
            mine.allocate(step, size)
        now = torch.cuda.memory_stats()
        allocated, reserved = (
            now[f"{name}_bytes.all.current"] - start[f"{name}_bytes.all.current"] for name in ("allocated", "reserved")
        )
        if (mine.allocated, mine.reserved) != (allocated, reserved):
            return step
    assert mine.allocated > 0
    return None


def test_the_counters_are_those_of_torch():
    read = compat.allocator_counters()
    assert read is not None
    held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 700, 3 << 20, 21 << 20)]
    del held[2]
    found = torch.cuda.memory_stats()
    kinds = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "requested_bytes.all.current")
    assert read(torch.cuda.current_device()) == tuple(found[kind] for kind in kinds)
    assert len(set(read(0))) == 3, "each is another number here"
