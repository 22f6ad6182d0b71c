"""A forked child, such as a data loader's worker: tiers of its own, and nothing of its parent's kept or touched."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

START = f"""
import os, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
import torch
from tests.support.offloading import bring, hold, options
from memgraph import runtime
from memgraph.base.errors import OffloadError
from memgraph.runtime import process, streams
folder = sys.argv[1]
torch.set_num_threads(1)  # its own threads do not come through a fork, either
x, y = torch.randn(1 << 18), torch.randn(1 << 18)

def child(work):
    pid = os.fork()
    if not pid:
        try:
            os._exit(work())
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(folder, program):
    text = START + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text, str(folder)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_a_value_of_the_parent_is_refused_and_values_of_the_child_are_its_own(tmp_path, tier):
    program = f"""
        given = options(folder, verify=True)
        room = runtime.prepare("cpu", given, {tier}_bytes=4 << 20)
        held = hold(x, {tier!r}, given)
        other = hold(x, {tier!r}, given, "other")  # the child does not load it early, as the run before its own

        def work():
            try:
                bring(held, x, {tier!r})
                return 1
            except OffloadError as error:
                assert "another process" in str(error), error
            own = options(folder, verify=True, window=1 << 30, graph="of the child")
            mine = [hold(y + n, {tier!r}, own, str(n)) for n in range(3)]
            return 0 if all(torch.equal(bring(value, y, {tier!r}), y + n) for n, value in enumerate(mine)) else 2

        print(child(work))
        print(torch.equal(bring(held, x, {tier!r}), x))
        room.close()
        del held, other
        runtime.release()
        print(runtime.statistics().{tier}_live)
    """
    assert run(tmp_path, program) == ["0", "True", "0"]


def test_a_lock_that_another_thread_held_does_not_hang_the_child(tmp_path):
    program = """
        given = options(folder)
        room = runtime.prepare("cpu", given, host_bytes=1 << 20, nvme_bytes=1 << 20)
        pool, file = runtime.host_pool("cpu"), runtime.scratch_file(folder, "cpu")
        locks = [process._lock, process._tidier._lock, streams._lock, pool._lock, pool.slots._lock, file._lock]
        locks.append(file._workers._shutdown_lock)
        taken = threading.Event()

        def take():
            for lock in locks:
                lock.acquire()
            taken.set()

        threading.Thread(target=take).start()
        taken.wait()

        def work():
            global room
            room = None
            with_room = runtime.prepare("cpu", given, host_bytes=1 << 20, nvme_bytes=2 << 20)
            good = all(torch.equal(bring(hold(x, tier, given), x, tier), x) for tier in ("host", "nvme"))
            with_room.close()
            runtime.release()
            now = runtime.statistics()
            return 0 if good and (now.host_pool, now.nvme_file) == (0, 0) else 1

        pid = os.fork()
        if not pid:
            os._exit(work())
        deadline = time.monotonic() + 30
        while not (done := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.05)
        if not done[0]:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(done[1]) if done[0] else "hangs", flush=True)
        os._exit(0)
    """
    assert run(tmp_path, program) == ["0"]


def test_a_child_does_not_keep_the_file_of_its_parent_on_the_disk(tmp_path):
    program = """
        room = runtime.prepare("cpu", options(folder), nvme_bytes=1 << 20)
        file = runtime.scratch_file(folder, "cpu").file
        before = os.readlink(f"/proc/self/fd/{file}")

        def work():
            return sum(os.readlink(f"/proc/self/fd/{name}") == before for name in os.listdir("/proc/self/fd")
                       if os.path.islink(f"/proc/self/fd/{name}"))

        print(child(work), work())
    """
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc")
    assert run(tmp_path, program) == ["0", "1"]
