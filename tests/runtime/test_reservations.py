"""Reservations end anywhere: in a collection under the tier's lock, on a thread of the tier's, in a forked child."""

import faulthandler
import gc
import subprocess
import sys
import threading
import time

import pytest
import torch

from memgraph import runtime
from memgraph.base.errors import OffloadError
from memgraph.runtime.host import HostPool, Memory
from memgraph.runtime.records import Record, reload
from memgraph.runtime.reservations import Reservations, Tidier, listed
from memgraph.runtime.slots import PAGE, Slots
from memgraph.runtime.space import Calls
from memgraph.runtime.tickets import content
from tests.support.offloading import bring, drained, hold, options

MIB = 1 << 20
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_leaks():
    yield
    runtime.host_pool("cpu", Memory())
    assert drained()
    runtime.release()


@pytest.fixture(autouse=True)
def no_hang():
    """A deadlock ends the process with every thread's stack, and not the patience of who waits."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def until(condition):
    deadline = time.monotonic() + 40  # passed only where it would fail anyway; a busy machine takes its time
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


class Cycle:
    """A compiled graph as torch keeps it: only a collection of garbage finds that nobody needs it."""

    def __init__(self, kept):
        self.kept, self.me = kept, self


class Collecting(Memory):
    """Garbage is collected where memory is asked for, which is under the pool's lock."""

    dropped = None

    def map(self, size):
        self.dropped = None
        gc.collect()
        return super().map(size)


@pytest.mark.slow
def test_a_collection_under_the_lock_of_the_host_pool():
    pool = runtime.host_pool("cpu", memory := Collecting())
    memory.dropped = Cycle(runtime.prepare("cpu", "{}", host_bytes=MIB))
    second = runtime.prepare("cpu", "{}", host_bytes=3 * MIB)  # the first ends in here
    assert until(lambda: pool.slots.total == 3 * MIB)
    memory.dropped = Cycle(runtime.prepare("cpu", "{}", host_bytes=MIB))
    held = hold(torch.zeros(2 * MIB), "host", "{}")  # and another in a step
    del held
    second.close()
    assert until(lambda: runtime.statistics().host_pool == 0 or pool.trim())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fallocate", "space"])
def test_a_collection_under_the_lock_of_the_scratch_file(tmp_path, kind):
    class Collecting(Calls):
        dropped = None

        def __getattribute__(self, name):
            if name == kind:
                self.dropped = None
                gc.collect()
            return super().__getattribute__(name)

    file = runtime.scratch_file(str(tmp_path), "cpu", calls := Collecting())
    calls.dropped = Cycle(runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB))
    second = runtime.prepare("cpu", options(tmp_path), nvme_bytes=3 * MIB)
    assert calls.dropped is None and until(lambda: [size for _, size in file.reserved()] == [3 * MIB])
    second.close()
    assert file.file == -1


@pytest.mark.slow
def test_a_collection_inside_of_slots():
    """The innermost lock: a reservation ends while a slot is being taken."""
    pool = runtime.host_pool("cpu", Memory())
    graph = [Cycle(runtime.prepare("cpu", "{}", host_bytes=MIB))]

    class Collecting(Slots):
        def _settle(self):
            graph.clear()
            gc.collect()
            super()._settle()

    slots, pool.slots = pool.slots, Collecting(pool._vacated)
    pool.slots.__dict__ |= {name: value for name, value in vars(slots).items() if name != "_lock"}
    x = torch.randn(100)
    assert torch.equal(bring(hold(x, "host", "{}"), x, "host"), x)
    assert not graph and until(lambda: not pool.reserved() and pool.trim() is None and pool.slots.total == 0)


def test_the_last_reference_dies_on_a_thread_of_the_file(tmp_path):
    """The executor's end would wait for that very thread."""
    others = set(threading.enumerate())  # files of graphs that earlier tests have left may have theirs
    file = runtime.scratch_file(str(tmp_path), "cpu", Calls())
    dropped = [Cycle(runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB))]
    where = []

    def drop(block):
        where.append(threading.current_thread().name)
        dropped.clear()
        gc.collect()

    file.run(drop, 1)
    assert until(lambda: file.file == -1) and where[0].startswith("memgraph-nvme")
    assert until(lambda: not any(t.name.startswith("memgraph-nvme") for t in {*threading.enumerate()} - others))
    x = torch.randn(MIB // 8)
    assert torch.equal(bring(hold(x, "nvme", options(tmp_path)), x, "nvme"), x)


def test_a_dropped_reservation_is_given_back_without_another_call(tmp_path):
    pool, file = runtime.host_pool("cpu", Memory()), runtime.scratch_file(str(tmp_path), "cpu", Calls())
    room = runtime.prepare("cpu", options(tmp_path), host_bytes=MIB, nvme_bytes=MIB)
    assert pool.slots.total == MIB and file.slots.total == MIB
    del room
    assert until(lambda: pool.slots.total == 0 and file.file == -1)


def test_tidying_goes_on_after_a_failure():
    class Tier:
        def __init__(self, fail=False):
            self.fail, self.done = fail, threading.Event()

        def trim(self):
            self.done.set()
            if self.fail:
                raise OSError("no")

    tidier = Tidier()
    tidier.start()
    tidier.start()
    tidier.ask(Tier(fail=True))
    tidier.ask(second := Tier())
    assert second.done.wait(10)


def test_a_reservation_is_given_back_once():
    pool = runtime.host_pool("cpu", Memory())
    first, second = (runtime.prepare("cpu", "{}", host_bytes=MIB, owner=name) for name in ("f", "g"))
    first.close()
    first.close()
    del first
    assert pool.reserved() == (("g", MIB),) and pool.slots.total == MIB
    second.close()


def test_holders_are_named():
    reservations = Reservations()
    numbers = [reservations.add(name, size * MIB) for name, size in (("f", 1), ("g", 3), ("f", 4), ("", 2), ("h", 1))]
    assert (
        listed(reservations.holders()) == "5.0 MiB by f, 3.0 MiB by g, 2.0 MiB by an unnamed graph, 1.0 MiB by 1 more"
    )
    assert reservations.total == 11 * MIB
    reservations.leave(numbers[2])
    reservations.leave(numbers[2])
    assert reservations.total == 11 * MIB, "only noted"
    assert reservations.settle() and not reservations.settle() and reservations.total == 7 * MIB


def test_a_range_that_a_thread_grew_is_its_own():
    """Another thread takes what it can in the moment in which the range is added."""
    pool = HostPool(CPU)
    stolen = []

    class Thief(Slots):
        def add(self, *arguments, **more):
            slot = super().add(*arguments, **more)
            stolen.append(self.take(PAGE))
            return slot

    pool.slots = Thief(pool._vacated)
    slot = pool._take(PAGE, None)
    assert slot.size == PAGE and stolen == [None]


def test_threads_that_grow_a_pool_at_once():
    pool, failures, switch = HostPool(CPU), [], sys.getswitchinterval()

    def take(seed):
        try:
            for n in range(300):
                assert pool._take(PAGE * (1 + (n * seed) % 3), None) is not None
        except BaseException as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=take, args=(seed,)) for seed in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
    finally:
        sys.setswitchinterval(switch)
    assert not failures
    pool.trim()
    assert pool.slots.live == pool.slots.total == 0


def test_values_beyond_the_plan_leave_reserved_room_alone():
    pool = runtime.host_pool("cpu", Memory())
    room = runtime.prepare("cpu", "{}", host_bytes=MIB)
    held = hold(torch.zeros(3 * MIB, dtype=torch.uint8), "host", "{}")
    assert pool.slots.total == 4 * MIB, "the room of a graph that does not run now is not traded for the value's"
    del held
    room.close()


def test_the_cap_names_who_has_reserved():
    room = runtime.prepare("cpu", options(cap=MIB), host_bytes=MIB, owner="loss_fn [0]")
    with pytest.raises(OffloadError, match=r"its cap is 1048576 \(reserved: 1\.0 MiB by loss_fn \[0\]\)"):
        runtime.prepare("cpu", options(cap=MIB), host_bytes=PAGE)
    room.close()


def test_a_value_that_is_asked_for_while_its_early_load_begins_is_held_once():
    """The early load would stay on the device until the value goes, and nobody would ever take it."""
    pool = runtime.host_pool("cpu", Memory())
    x = torch.randn(100)
    held = hold(x, "host", "{}")
    record = content(held, Record)
    empty, interrupts, loads = pool.empty, [True], []

    def interrupted(value, layout):
        if interrupts:
            interrupts.pop()
            loads.append(reload(record, layout).finish())
        return empty(value, layout)

    pool.empty = interrupted
    record.load_early()
    assert torch.equal(loads[0], x) and record.early is None
    record.load_early()
    assert record.early is None, "it has been asked for"


def test_a_value_that_cannot_come_early_comes_when_it_is_asked_for():
    """Others, on whose behalf it would come, are not told of it."""
    pool = runtime.host_pool("cpu", Memory())
    x = torch.randn(100)
    record = content(hold(x, "host", "{}"), Record)
    empty = pool.empty

    def full(value, layout):
        raise torch.OutOfMemoryError("no room for it yet")

    pool.empty = full
    record.load_early()
    assert record.early is None
    pool.empty = empty
    record.load_early()
    early = record.ask()
    assert early is not None and torch.equal(early.finish(), x)


ENDS_WHILE_TIDYING = """
import threading, torch
from memgraph.runtime.reservations import Tidier

began = threading.Event()

class Busy:
    def trim(self):
        began.set()
        for _ in range(3000):  # most of it within C++
            torch.ones(1 << 16).sum()

tidier = Tidier()
tidier.start()
tidier.ask(Busy())
began.wait()
"""


@pytest.mark.slow
def test_a_process_that_ends_while_a_tier_is_tidied_ends_well():
    """The interpreter's end unwinds a daemon thread wherever it is; within C++ that aborts the process."""
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_TIDYING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
