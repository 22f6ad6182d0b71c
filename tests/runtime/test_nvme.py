import errno
import os
import stat

import pytest
import torch

from memgraph import runtime
from memgraph.base.errors import OffloadError
from memgraph.runtime.space import Calls
from tests.support.offloading import Failing, Halting, bring, drained, hold, options

MIB = 1 << 20
SHM = "/dev/shm"


@pytest.fixture(autouse=True)
def nothing_leaks():
    yield
    assert drained()
    runtime.release()


def round_trip(folder, size=3 * MIB, **more):
    x = torch.randn(size // 4)
    return torch.equal(bring(hold(x, "nvme", options(folder, **more)), x, "nvme"), x)


def test_the_file_has_no_name_and_one_owner(tmp_path):
    seen = []

    class Watching(Calls):
        def open(self, path, flags, mode):
            seen.append(super().open(path, flags, mode))
            return seen[-1]

    runtime.scratch_file(str(tmp_path), "cpu", Watching())
    assert round_trip(tmp_path)
    assert not os.listdir(tmp_path)
    file = os.fstat(seen[-1])
    assert stat.S_IMODE(file.st_mode) == 0o600 and file.st_nlink == 0 and not os.get_inheritable(seen[-1])
    runtime.release()
    with pytest.raises(OSError):
        os.fstat(seen[-1])


def test_without_nameless_files_it_is_unlinked_at_once(tmp_path):
    class Old(Calls):
        def open(self, path, flags, mode):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return super().open(path, flags, mode)

    runtime.scratch_file(str(tmp_path), "cpu", Old())
    assert round_trip(tmp_path) and not os.listdir(tmp_path)


@pytest.mark.parametrize("at", ["open", "pwrite"])
def test_buffered_where_there_is_no_direct_io_and_says_so(tmp_path, at):
    class Buffered(Calls):
        def open(self, path, flags, mode):
            self.direct = bool(flags & os.O_DIRECT)
            if at == "open" and self.direct:
                raise OSError(errno.EINVAL, "Invalid argument")
            return super().open(path, flags, mode)

        def pwrite(self, file, data, offset):
            if self.direct:
                raise OSError(errno.EINVAL, "Invalid argument")
            return super().pwrite(file, data, offset)

    file = runtime.scratch_file(str(tmp_path), "cpu", Buffered())
    assert round_trip(tmp_path, verify=True)
    assert file.direct is False
    assert f"{tmp_path}: buffered: the file system takes no O_DIRECT" in runtime.statistics().notes


def test_space_is_reserved_before_the_first_step(tmp_path):
    before = os.statvfs(tmp_path)
    room = runtime.prepare("cpu", options(tmp_path), nvme_bytes=200 * MIB)
    after = os.statvfs(tmp_path)
    assert (before.f_bfree - after.f_bfree) * before.f_frsize > 150 * MIB
    assert runtime.scratch_file(str(tmp_path), "cpu").slots.total == 200 * MIB
    room.close()
    assert runtime.scratch_file(str(tmp_path), "cpu").slots.total == 0


def test_more_than_the_limit_is_refused(tmp_path):
    with pytest.raises(OffloadError, match="limit is 1048576"):
        runtime.prepare("cpu", options(tmp_path, limit=MIB), nvme_bytes=2 * MIB)
    x = torch.zeros(MIB)
    with pytest.raises(OffloadError, match="value 'x', tier 'nvme', in .*limit is 1048576"):
        hold(x, "nvme", options(tmp_path, limit=MIB))


def test_a_file_system_that_cannot_reserve_is_written_to(tmp_path):
    file = runtime.scratch_file(str(tmp_path), "cpu", Failing(fallocate=errno.EOPNOTSUPP))
    room = runtime.prepare("cpu", options(tmp_path), nvme_bytes=9 * MIB + 1)
    assert os.fstat(file.file).st_blocks * 512 >= 9 * MIB
    assert round_trip(tmp_path)
    room.close()


def test_short_and_interrupted_calls_are_continued(tmp_path):
    calls = Halting()
    runtime.scratch_file(str(tmp_path), "cpu", calls)
    assert round_trip(tmp_path, 9 * MIB, verify=True)
    assert calls.calls > 20


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 4 * MIB, 4 * MIB + 1, 13 * MIB])
def test_sizes_around_pages_and_blocks(tmp_path, size):
    x = torch.randint(0, 256, (size,), dtype=torch.uint8)
    assert torch.equal(bring(hold(x, "nvme", options(tmp_path)), x, "nvme"), x)


def test_bytes_written_and_read_are_counted(tmp_path):
    file = runtime.scratch_file(str(tmp_path), "cpu", Calls())
    x = torch.zeros(5 * MIB, dtype=torch.uint8)
    held = hold(x, "nvme", options(tmp_path))
    bring(held, x, "nvme")
    bring(held, x, "nvme")
    page = 4096 if x.data_ptr() % 4096 else 0  # whole pages are moved
    assert (file.written, file.read) == (5 * MIB + page, 10 * MIB + 2 * page)


def test_the_file_is_reused_every_step(tmp_path):
    file = runtime.scratch_file(str(tmp_path), "cpu", Calls())
    for _ in range(10):
        held = [hold(torch.zeros(size), "nvme", options(tmp_path), str(size)) for size in (100_000, 300_000, 200_000)]
        held.clear()
        assert drained()
    assert file.slots.total <= 1.05 * file.slots.peak


@pytest.mark.skipif(not os.path.isdir(SHM) or not os.access(SHM, os.W_OK), reason="no tmpfs")
def test_on_a_tmpfs():
    assert round_trip(SHM, 9 * MIB, verify=True)
    assert runtime.statistics().direct is not None


def test_a_vanished_folder_does_not_matter_to_the_file_and_stops_a_new_one(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    x = torch.randn(MIB)
    held = hold(x, "nvme", options(folder))
    folder.rmdir()
    assert torch.equal(bring(held, x, "nvme"), x)
    del held
    assert drained()
    runtime.release()
    with pytest.raises(OffloadError, match="no scratch file can be opened: No such file or directory"):
        runtime.prepare("cpu", options(folder), nvme_bytes=MIB)


def test_no_folder_is_named():
    with pytest.raises(OffloadError, match="no scratch folder"):
        hold(torch.zeros(3), "nvme", "{}")
