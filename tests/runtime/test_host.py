import errno
import random

import pytest
import torch

from memgraph import runtime
from memgraph.base.errors import OffloadError
from memgraph.runtime.host import HostPool, Memory
from memgraph.runtime.slots import PAGE, Slots, pages
from tests.support.offloading import bring, drained, hold, options

MIB = 1 << 20


@pytest.fixture
def pool():
    """A pool of the test's own in the place of the process's."""
    yield runtime.host_pool("cpu", Memory())
    runtime.host_pool("cpu", Memory())


def test_slots_fit_best_and_merge():
    slots = Slots()
    slots.add(0, 10 * PAGE)
    taken = [slots.take(n * PAGE) for n in (1, 3, 1, 2, 1)]
    assert [slot.start // PAGE for slot in taken] == [0, 1, 4, 5, 7]
    assert slots.take(3 * PAGE) is None
    taken[1] = taken[3] = None  # holes of 3 and of 2 pages; 2 more at the end
    assert slots.take(PAGE + 1).start == 5 * PAGE
    taken.clear()
    slots.settle()
    assert slots.live == 0 and slots.peak == 8 * PAGE
    whole = slots.take(10 * PAGE)
    assert whole.start == 0 and slots.live == 10 * PAGE


def test_slots_do_not_reach_across_segments():
    slots = Slots()
    slots.add(0, 2 * PAGE)
    slots.add(2 * PAGE, 2 * PAGE)
    assert slots.take(3 * PAGE) is None
    slot = slots.take(PAGE)
    assert not slots.remove(slot.start, 2 * PAGE) and slots.remove(2 * PAGE - slot.start, 2 * PAGE)
    assert slots.total == 2 * PAGE


def test_slots_never_overlap():
    draw = random.Random(0)
    slots, taken = Slots(), []
    slots.add(0, 64 * PAGE)
    for _ in range(3000):
        if taken and draw.random() < 0.5:
            taken.pop(draw.randrange(len(taken)))
        elif slot := slots.take(draw.randrange(1, 9 * PAGE)):
            taken.append(slot)
            slot = None
        ranges = sorted((slot.start, slot.start + slot.size) for slot in taken)
        assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        assert slots.live == sum(end - start for start, end in ranges)
    taken.clear()
    assert slots.take(64 * PAGE).size == 64 * PAGE


def test_pool_is_exact_and_reused(pool):
    sizes = [3 * MIB + 5, MIB, 2 * MIB + 4097]
    with_room = runtime.prepare("cpu", "{}", host_bytes=sum(map(pages, sizes)))
    assert pool.slots.total == sum(map(pages, sizes))
    for _ in range(5):
        held = [hold(torch.zeros(size, dtype=torch.uint8), "host", "{}", str(size)) for size in sizes]
        assert pool.slots.live == pool.slots.total
        held.clear()
    assert pool.slots.total <= 1.05 * pool.slots.peak
    with_room.close()
    assert pool.slots.total == 0


def test_pool_grows_to_the_cap_and_no_further(pool):
    x = torch.zeros(MIB, dtype=torch.uint8)
    capped = options(cap=2 * MIB)
    held = [hold(x, "host", capped, name) for name in "ab"]
    with pytest.raises(OffloadError, match="value 'c', tier 'host': .*cap is 2097152") as caught:
        hold(x, "host", capped, "c")
    assert (caught.value.value, caught.value.tier) == ("c", "host")
    with pytest.raises(OffloadError, match="cap"):
        runtime.prepare("cpu", capped, host_bytes=3 * MIB)
    held.pop()
    assert torch.equal(bring(hold(x, "host", capped, "c"), x, "host"), x)
    assert pool.slots.total == 2 * MIB


def test_other_shapes_do_not_pile_up(pool):
    for size in (100_000, 200_000, 300_000, 250_000, 900_000, 50_000):
        held = [hold(torch.zeros(size, dtype=torch.uint8), "host", "{}", str(i)) for i in range(3)]
        held.clear()
    assert pool.slots.total <= 3 * pages(900_000)


class Refusing(Memory):
    def map(self, size):
        if size > MIB:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return super().map(size)


def test_refused_memory_is_named_and_leaves_nothing():
    try:
        pool = runtime.host_pool("cpu", Refusing())
        with pytest.raises(OffloadError, match=r"4\.0 MiB \(4194304 bytes\) refused") as caught:
            runtime.prepare("cpu", "{}", host_bytes=4 * MIB)
        assert caught.value.tier == "host"
        with pytest.raises(OffloadError, match="value 'big'"):
            hold(torch.zeros(MIB), "host", "{}", "big")
        assert pool.slots.total == 0 and drained()
        x = torch.randn(100)
        assert torch.equal(bring(hold(x, "host", "{}"), x, "host"), x)
    finally:
        runtime.host_pool("cpu", Memory())
    assert drained()


def test_a_damaged_byte_is_found(pool):
    x = torch.randn(5000)
    held = hold(x, "host", options(verify=True))
    pool._segments[0].view[9] ^= 1
    with pytest.raises(OffloadError, match="checksum"):
        bring(held, x, "host")


def test_released_slots_are_poisoned(pool):
    x = torch.zeros(5000)
    with runtime.sanitized():
        held = hold(x, "host", "{}")
        del held
    assert bytes(pool._segments[0].view[:20_000]) == b"\xff" * 20_000


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_memory_is_page_locked_and_given_back():
    pool = HostPool(torch.device("cuda", 0))
    room = pool.reserve(8 * MIB)
    assert pool._segments[0].tensor.is_pinned()
    pool.release(room)
    assert pool.slots.total == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_refusal_is_named_and_the_device_goes_on():
    class Locked(Memory):
        def register(self, address, size):
            return super().register(8, size)

    with pytest.raises(OffloadError, match="CUDA refused to page-lock 1.0 MiB"):
        HostPool(torch.device("cuda", 0), Locked()).reserve(MIB)
    assert torch.ones(3, device="cuda").sum().item() == 3
