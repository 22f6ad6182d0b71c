"""The policy of torch's caching allocator, by hand; tests/simulated holds it against the real one."""

import pytest

from memgraph.machine.caching_allocator import BLOCK, MIB, CachingAllocator, in_blocks, leaves_uncut
from memgraph.planner.decisions import Event, Timeline


def test_a_small_tensor_counts_as_whole_512_bytes():
    allocator = CachingAllocator()
    assert allocator.allocate("a", 1) == BLOCK
    assert allocator.allocate("b", MIB) == MIB
    assert (allocator.allocated, allocator.reserved) == (MIB + BLOCK, 2 * MIB)


def test_a_large_block_is_left_whole_where_little_would_be_left():
    allocator = CachingAllocator()
    assert allocator.allocate("a", 11 * MIB + 1) == 12 * MIB
    allocator.free("a")
    assert allocator.allocate("b", 10 * MIB) == 10 * MIB  # 2 MiB are cut off
    assert allocator.allocate("c", 2 * MIB - BLOCK) == 2 * MIB  # and are left whole now
    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 12 * MIB)


def test_neighbours_become_one_block_again():
    allocator = CachingAllocator()
    for name in "abcd":
        allocator.allocate(name, 5 * MIB)
    assert allocator.reserved == 20 * MIB
    for name in "acb":
        allocator.free(name)
    assert allocator.allocate("e", 15 * MIB) == 15 * MIB
    assert allocator.reserved == 20 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    for name, size in (("large", 40), ("wall", 30), ("fits", 12)):
        allocator.allocate(name, size * MIB)
    allocator.free("large")
    allocator.free("fits")
    assert allocator.allocate("new", 12 * MIB) == 12 * MIB
    assert allocator.reserved == 82 * MIB


def test_changes_in_whole_blocks():
    changes = [("a", 11 * MIB + 512), ("before", -3 * MIB), ("a", -11 * MIB - 512), ("a", 512)]
    assert in_blocks(changes) == [12 * MIB, -3 * MIB, -12 * MIB, 512]


def test_later_steps_find_other_blocks():
    """The first step leaves 10 and 20 MiB. The second cuts `a` off the 10, `b` off the 20: 10.5 are left for `c`."""
    half = MIB // 2
    changes = [("a", 11 * half), ("b", 19 * half), ("c", 20 * half)]
    allocator = CachingAllocator()
    assert [allocator.allocate(*change) for change in changes] == [11 * half, 19 * half, 20 * half]
    assert in_blocks(changes) == [11 * half, 19 * half, 21 * half]


def test_a_timeline_in_whole_blocks():
    step = Timeline((Event("forward", "a", 11 * MIB + 512), Event("backward", "a", -11 * MIB - 512)))
    assert (step.peak, step.in_blocks().peak) == (11 * MIB + 512, 12 * MIB)
    assert step.above(MIB).peak == 12 * MIB + 512 and step.above(MIB).sums()[-1] == step.sums()[-1]
    assert step.in_blocks().sums()[-1] == 0
    odd = Timeline((Event("forward", "a", 12), Event("forward", "b", 513), Event("backward", "a", -12)))
    assert odd.in_multiples(BLOCK).sums() == [512, 1536, 1024]


@pytest.mark.parametrize("told, left", [("", True), ("expandable_segments:True", False), ("max_split_size_mb:4", True)])
@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_that_expand_are_always_cut(monkeypatch, variable, told, left):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv(variable, told)
    assert leaves_uncut("cuda") == left
    assert not leaves_uncut("cpu")
