"""Room on a disk: a margin stays free, and a reservation that fails takes nothing. No test fills the machine's disk."""

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from memgraph import runtime
from memgraph.backend.options import parse_options
from memgraph.base.errors import OffloadError, OptionsError
from memgraph.runtime import space
from memgraph.runtime.nvme_file import ScratchFile
from memgraph.runtime.space import Calls, Space
from tests.support.offloading import bring, drained, hold, options

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def nothing_leaks():
    yield
    assert drained()
    runtime.release()


@pytest.fixture
def small_disk(tmp_path):
    """Mounts file systems of so many bytes; skips where that is not allowed."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("file systems cannot be mounted here")
        mounted.append(folder)
        return str(folder)

    yield mount
    runtime.release()
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)  # a test that fails may hold a file


class Disk(Calls):
    """A disk of `size` bytes. As posix_fallocate does, a reservation takes all that there is before it says no."""

    def __init__(self, size, free=None, in_the_way=0):
        self.size, self.free, self.length = size, size if free is None else free, 0
        self.in_the_way = in_the_way  # bytes that others take while a reservation is being made
        self.lowest, self.reserved = self.free, []

    def space(self, file):
        return Space(self.size, self.free)

    def fallocate(self, file, offset, size):
        self.reserved.append(size)
        self.free -= self.in_the_way
        taken = min(size, self.free)
        self.free, self.length = self.free - taken, offset + taken
        self.lowest = min(self.lowest, self.free)
        if taken < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, file, size):
        self.free += self.length - size
        self.length = size


def disk(folder, *sizes, **more):
    runtime.scratch_file(str(folder), "cpu", made := Disk(*sizes, **more))
    return made


def test_more_than_the_disk_has_is_refused_without_taking_any(tmp_path):
    calls = disk(tmp_path, 100 * GIB)
    with pytest.raises(OffloadError, match=r"cannot be reserved: the file system has 100\.0 GiB free") as caught:
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=200 * GIB)
    assert (caught.value.tier, caught.value.path) == ("nvme", str(tmp_path))
    assert not calls.reserved and calls.lowest == 100 * GIB


@pytest.mark.parametrize(
    ("size", "margin", "left"),
    [(100 * GIB, None, GIB), (GIB, None, GIB // 20), (GIB, 0, 0), (GIB, 3 * MIB, 3 * MIB), (GIB, 0.5, GIB // 2)],
)
def test_a_margin_stays_free(tmp_path, size, margin, left):
    calls = disk(tmp_path, size)
    most = (size - left) // 4096 * 4096
    with pytest.raises(OffloadError, match=f"of which .* \\({left} bytes\\) stay free for others"):
        runtime.prepare("cpu", options(tmp_path, margin=margin), nvme_bytes=most + 4096)
    assert not calls.reserved
    room = runtime.prepare("cpu", options(tmp_path, margin=margin), nvme_bytes=most)
    assert left <= calls.free < left + 4096
    planned = runtime.scratch_file(str(tmp_path), "cpu").take(most, None, margin)
    with pytest.raises(OffloadError, match="value 'x'.*stay free"):  # a value beyond the plan does not take it, either
        hold(torch.zeros(MIB), "nvme", options(tmp_path, margin=margin))
    del planned
    room.close()


def test_what_a_failed_reservation_took_goes_back_at_once(tmp_path):
    calls = disk(tmp_path, GIB, in_the_way=900 * MIB)
    with pytest.raises(OffloadError, match="No space left"):
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=500 * MIB)
    assert calls.lowest == 0 and calls.free == GIB - 900 * MIB and calls.length == 0


def test_a_margin_that_others_took_meanwhile_is_given_back(tmp_path):
    calls = disk(tmp_path, GIB, in_the_way=400 * MIB)
    with pytest.raises(OffloadError, match="stay free for others"):
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=600 * MIB)
    assert calls.reserved == [600 * MIB] and calls.free == GIB - 400 * MIB


def test_an_interrupted_reservation_goes_back(tmp_path):
    class Interrupted(Disk):
        def fallocate(self, file, offset, size):
            super().fallocate(file, offset, size)
            raise KeyboardInterrupt

    runtime.scratch_file(str(tmp_path), "cpu", calls := Interrupted(GIB))
    with pytest.raises(KeyboardInterrupt):
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB)
    assert calls.free == GIB
    assert runtime.scratch_file(str(tmp_path), "cpu").file == -1, "nobody needs the file, so it is closed"


def test_writing_instead_of_reserving_goes_back_too(tmp_path):
    class Full(Calls):
        def fallocate(self, file, offset, size):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        def pwrite(self, file, data, offset):
            if offset >= 5 * MIB:
                self.length = os.fstat(file).st_size
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(file, data, offset)

        def truncate(self, file, size):
            super().truncate(file, size)
            self.after = os.fstat(file).st_size

    runtime.scratch_file(str(tmp_path), "cpu", calls := Full())
    kept = runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB)
    with pytest.raises(OffloadError, match="No space left"):
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=9 * MIB)
    assert calls.length > calls.after == MIB
    kept.close()


def test_on_a_file_system_of_its_own(small_disk):
    folder = small_disk(64 * MIB)
    with pytest.raises(OffloadError, match="stay free for others"):
        runtime.prepare("cpu", options(folder), nvme_bytes=62 * MIB)
    assert Space.of(folder).free == 64 * MIB
    room = runtime.prepare("cpu", options(folder), nvme_bytes=60 * MIB)
    assert Space.of(folder).free == 4 * MIB
    with open(f"{folder}/another", "wb") as file:  # another program has what it needs
        file.write(bytes(3 * MIB))
    x = torch.randn(1000)
    assert torch.equal(bring(hold(x, "nvme", options(folder)), x, "nvme"), x)
    room.close()


def test_the_system_that_says_no_late_is_given_everything_back(small_disk):
    """Without asking first: the file system itself refuses, half way, and nothing stays taken."""
    folder = small_disk(16 * MIB)

    class Blind(Calls):
        def space(self, file):
            return Space(GIB, GIB)

        def fallocate(self, file, offset, size):
            for start in range(offset, offset + size, MIB):  # takes what there is before it says no
                super().fallocate(file, start, MIB)

    runtime.scratch_file(folder, "cpu", Blind())
    kept = runtime.prepare("cpu", options(folder), nvme_bytes=4 * MIB)
    with pytest.raises(OffloadError, match="No space left"):
        runtime.prepare("cpu", options(folder), nvme_bytes=40 * MIB)
    assert Space.of(folder).free == 12 * MIB
    kept.close()


@pytest.mark.slow
def test_two_at_once_keep_the_margin(tmp_path):
    """Of two that would both fit alone, one is refused: they take turns, in one process and between processes."""
    asked = threading.Barrier(2, timeout=2)

    class Slow(Disk):
        def space(self, file):
            now = super().space(file)
            with contextlib.suppress(threading.BrokenBarrierError):
                asked.wait()  # both have asked before either takes; times out where they take turns
            return now

    calls = Slow(GIB)
    files = [ScratchFile(str(tmp_path), torch.device("cpu"), calls) for _ in range(2)]
    failures = []

    def reserve(file):
        try:
            file.reserve(600 * MIB)
        except OffloadError as error:
            failures.append(error)

    threads = [threading.Thread(target=reserve, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(failures) == 1 and "stay free" in str(failures[0])
    assert calls.lowest >= GIB // 20 and len(calls.reserved) == 1
    for file in files:
        file.reservations.leave(0)
        file.trim()


@pytest.mark.slow
def test_another_process_takes_its_turn(tmp_path):
    program = f"""
        from memgraph.runtime import space
        with space.turn({str(tmp_path)!r}):
            print("mine", flush=True)
            input()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "mine\n"
        entered = threading.Event()

        def enter():
            with space.turn(str(tmp_path)):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.3)
        child.communicate("\n", timeout=20)
        assert entered.wait(20)
        thread.join()
    finally:
        child.kill()
        child.wait()


def test_a_folder_that_cannot_be_locked_makes_nobody_wait(tmp_path):
    with space.turn(str(tmp_path / "gone")):
        pass
    with pytest.raises(RuntimeError), space.turn(str(tmp_path)):
        raise RuntimeError


@pytest.mark.parametrize(("given", "margin"), [("2GiB", 2 * GIB), (0, 0), (0.1, 0.1), (0.0, 0.0), (None, None)])
def test_the_option(given, margin):
    parsed = parse_options({"offload": {"nvme": {"path": "/scratch", "margin": given}}})
    assert parsed.offload.nvme.margin == margin and type(parsed.offload.nvme.margin) is type(margin)


@pytest.mark.parametrize("given", [-1, 1.0, -0.1, float("nan"), True, "5%", "much"])
def test_margins_that_are_refused(given):
    with pytest.raises(OptionsError, match=r"option 'offload\.nvme\.margin' cannot be"):
        parse_options({"offload": {"nvme": {"path": "/scratch", "margin": given}}})
