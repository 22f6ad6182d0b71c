import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from memgraph import runtime
from memgraph.base.errors import OffloadError
from tests.support import ROOT
from tests.support.offloading import Cube, Failing, Halting, bring, drained, hold, ops, options

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_leaks():
    assert drained()
    yield
    assert drained()
    runtime.release()


@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOSPC])
def test_no_file_can_be_opened(tmp_path, fault):
    runtime.scratch_file(str(tmp_path), "cpu", Failing(open=fault))
    with pytest.raises(OffloadError, match=f"no scratch file can be opened: {os.strerror(fault)}") as caught:
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB)
    assert (caught.value.tier, caught.value.path) == ("nvme", str(tmp_path))
    goes_on(tmp_path)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no folder that takes no files")
def test_a_folder_that_takes_no_files():
    with pytest.raises(OffloadError, match="no scratch file can be opened"):
        runtime.prepare("cpu", options("/proc/self"), nvme_bytes=MIB)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EFBIG])
def test_no_room_can_be_reserved(tmp_path, fault):
    runtime.scratch_file(str(tmp_path), "cpu", Failing(fallocate=fault))
    with pytest.raises(OffloadError, match=f"1048576 bytes cannot be reserved: {os.strerror(fault)}"):
        runtime.prepare("cpu", options(tmp_path), nvme_bytes=MIB)
    with pytest.raises(OffloadError, match="value 'x', tier 'nvme'"):
        hold(torch.zeros(10), "nvme", options(tmp_path))
    goes_on(tmp_path)


@pytest.mark.slow
def test_a_real_limit_on_the_size_of_files(tmp_path):
    program = f"""
        import resource
        import torch
        from memgraph import runtime
        from memgraph.base.errors import OffloadError
        resource.setrlimit(resource.RLIMIT_FSIZE, ({8 * MIB}, {8 * MIB}))
        try:
            runtime.prepare("cpu", {options(tmp_path)!r}, nvme_bytes={16 * MIB})
        except OffloadError as error:
            assert "File too large" in str(error), error
            runtime.prepare("cpu", {options(tmp_path)!r}, nvme_bytes={4 * MIB})
            print("refused, and went on")
    """
    done = run(program)
    assert done.stdout.strip() == "refused, and went on", done.stderr


def goes_on(folder):
    """The process can go on with another plan: the other tier, or the same folder once it works again."""
    x = torch.randn(100_000, requires_grad=True)
    runtime.scratch_file(str(folder), "cpu", Failing())
    for tier in ("host", "nvme"):
        Cube.apply(x, tier, options(folder)).sum().backward()
        assert torch.equal(x.grad, 3 * x.detach() ** 2)
        x.grad = None
    assert drained()


@pytest.mark.parametrize("kind", ["pwrite", "pread"])
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_stops_the_step_that_needs_the_value(tmp_path, kind, fault):
    calls = Failing()
    runtime.scratch_file(str(tmp_path), "cpu", calls)
    room = runtime.prepare("cpu", options(tmp_path), nvme_bytes=64 * MIB)
    x = torch.randn(6 * MIB // 4, requires_grad=True)
    for _ in range(2):
        calls.failures[kind] = fault
        with pytest.raises(OffloadError, match=os.strerror(fault)) as caught:
            Cube.apply(x, "nvme", options(tmp_path), "mul_3").sum().backward()
        assert (caught.value.value, caught.value.tier, caught.value.path) == ("mul_3", "nvme", str(tmp_path))
        assert x.grad is None
        del caught
        calls.failures.clear()
        Cube.apply(x, "nvme", options(tmp_path), "mul_3").sum().backward()
        assert torch.equal(x.grad, 3 * x.detach() ** 2)
        x.grad = None
    room.close()
    goes_on(tmp_path)


def test_a_lost_value_stays_lost(tmp_path):
    calls = Failing()
    runtime.scratch_file(str(tmp_path), "cpu", calls)
    x = torch.randn(MIB)
    held = hold(x, "nvme", options(tmp_path))
    for failures in ({"pread": errno.EIO}, {}):
        calls.failures = failures
        with pytest.raises(OffloadError, match="value 'x'.*Input/output error"):
            bring(held, x, "nvme")


def test_a_file_that_ends_early(tmp_path):
    calls = Halting()
    runtime.scratch_file(str(tmp_path), "cpu", calls)
    x = torch.randn(MIB)
    held = hold(x, "nvme", options(tmp_path))
    calls.end = True
    with pytest.raises(OffloadError, match="value 'x', tier 'nvme', in .*: the file ended before the value did"):
        bring(held, x, "nvme")


def test_calls_that_move_nothing_useful_end(tmp_path):
    class Stuck(Failing):
        def pread(self, file, data, offset):
            return 5

    runtime.scratch_file(str(tmp_path), "cpu", Stuck())
    x = torch.randn(MIB)
    with pytest.raises(OffloadError, match="moved less than a page"):
        bring(hold(x, "nvme", options(tmp_path)), x, "nvme")


def test_a_flipped_byte_is_found(tmp_path):
    calls = Halting()
    runtime.scratch_file(str(tmp_path), "cpu", calls)
    x = torch.randn(3 * MIB)
    held = hold(x, "nvme", options(tmp_path, verify=True))
    assert torch.equal(bring(held, x, "nvme"), x)
    calls.flip = True
    with pytest.raises(OffloadError, match="value 'x', tier 'nvme', in .*checksum"):
        bring(held, x, "nvme")


def test_a_defect_in_a_thread_is_an_error_and_not_a_wrong_value(tmp_path):
    class Broken(Failing):
        def pread(self, file, data, offset):
            raise MemoryError("no")

    runtime.scratch_file(str(tmp_path), "cpu", Broken())
    x = torch.randn(MIB)
    with pytest.raises(OffloadError, match="MemoryError: no"):
        bring(hold(x, "nvme", options(tmp_path)), x, "nvme")


def test_an_interrupt_while_it_waits(tmp_path):
    class Slow(Failing):
        def pwrite(self, file, data, offset):
            if len(data) > 4096:
                time.sleep(0.2)
            return super().pwrite(file, data, offset)

    runtime.scratch_file(str(tmp_path), "cpu", Slow())
    x = torch.randn(40 * MIB // 4)
    begun = ops.offload_start(x, "x", "nvme", options(tmp_path))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            ops.offload_finish(begun, x, "nvme")
    finally:
        signal.signal(signal.SIGALRM, before)
    del begun
    assert drained()
    goes_on(tmp_path)


def run(program, **more):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, **more)


@pytest.mark.slow
def test_kill_in_the_middle_of_a_step_leaves_nothing(tmp_path):
    program = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import torch
        from tests.support.offloading import hold, options
        x = torch.randn({8 * MIB})
        held = [hold(x, "nvme", options({str(tmp_path)!r}), "first")]
        print("stepping", flush=True)
        while True:
            held = [hold(x, "nvme", options({str(tmp_path)!r}), str(i)) for i in range(2)]
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "stepping\n"
        opened = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")]
        assert any(str(tmp_path) in name for name in opened)
        time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert child.returncode == -signal.SIGKILL and not os.listdir(tmp_path)


@pytest.mark.slow
def test_exit_with_copies_under_way_ends(tmp_path):
    program = f"""
        import torch
        from memgraph import runtime
        x = torch.randn({8 * MIB})
        begun = torch.ops.memgraph.offload_start(x, "x", "nvme", {options(tmp_path)!r})
    """
    done = run(program, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and not os.listdir(tmp_path)
