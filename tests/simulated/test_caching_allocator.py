"""The policy that plans are counted by, against torch's own caching allocator."""

import random

import pytest
import torch

from memgraph.machine.caching_allocator import CachingAllocator

MIB = 1024**2


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_tensors(seed):
    """Sizes differ all, since it is the addresses that decide between equal blocks."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()  # of the workspaces, too
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
        assert (mine.allocated, mine.reserved) == (allocated, reserved), step
    assert mine.allocated > 0
