import contextlib
import gc
import mmap
import os
import threading
import weakref

import pytest
import torch

from memgraph import runtime
from memgraph.base.errors import OffloadError
from memgraph.runtime import nvme
from memgraph.runtime.nvme_file import Calls
from memgraph.runtime.settings import Settings
from tests.support.offloading import Cube, Gds, GdsFiles, bring, drained, hold, ops, options

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def nothing_leaks():
    yield
    assert drained()
    runtime.release()


def direct(folder, **more):
    return options(folder, gpudirect=True, **more)


def use(folder, files, calls=None):
    return runtime.scratch_file(str(folder), "cpu", calls, gds=files)


def notes(folder):
    return [note for note in runtime.statistics().notes if note.startswith(str(folder))]


@pytest.mark.parametrize("sanitizing", [False, True])
@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 4 * MIB, 4 * MIB + 1, 4 * MIB + 4096, 13 * MIB + 5])
def test_whole_pages_go_direct_and_the_rest_is_staged(tmp_path, size, sanitizing):
    use(tmp_path, files := GdsFiles())
    x = torch.randint(0, 256, (size,), dtype=torch.uint8)
    with runtime.sanitized() if sanitizing else contextlib.nullcontext():
        held = hold(x, "nvme", direct(tmp_path))
        for _ in range(2):
            assert torch.equal(bring(held, x, "nvme"), x)
    assert sum(count for _, count, _ in files.of("save")) == size // 4096 * 4096
    assert sorted(files.of("load")) == sorted(("load", *rest) for _, *rest in files.of("save") * 2)
    assert all(0 < count <= 4 * MIB and count % 4096 == offset % 4096 == 0 for _, count, offset in files.calls)
    assert not notes(tmp_path) and runtime.statistics().gpudirect == (str(tmp_path),)


def test_only_the_values_own_bytes_are_touched(tmp_path):
    use(tmp_path, GdsFiles())
    around = torch.randint(0, 256, (3 * MIB,), dtype=torch.uint8)
    x = around[777:][: MIB + 99]
    held = hold(x, "nvme", direct(tmp_path))
    target = torch.zeros(3 * MIB, dtype=torch.uint8)
    record = nvme_value(held)
    transfer = runtime.scratch_file(str(tmp_path), "cpu").reload(record, target[333:][: MIB + 99])
    transfer.finish()
    assert torch.equal(target[333:][: MIB + 99], x)
    assert not target[:333].any() and not target[333 + MIB + 99 :].any()


def nvme_value(held):
    from memgraph.runtime.records import Record
    from memgraph.runtime.tickets import content

    return content(held, Record).value


def test_strides_and_gradients(tmp_path):
    use(tmp_path, files := GdsFiles())
    x = torch.randn(300, 700).t().requires_grad_()
    for _ in range(3):
        Cube.apply(x, "nvme", direct(tmp_path)).sum().backward()
        assert torch.equal(x.grad, 3 * x.detach() ** 2)
        x.grad = None
    assert len(files.of("save")) == len(files.of("load")) == 3


def test_bytes_are_counted(tmp_path):
    file = use(tmp_path, GdsFiles())
    x = torch.zeros(5 * MIB, dtype=torch.uint8)
    bring(hold(x, "nvme", direct(tmp_path)), x, "nvme")
    assert (file.written, file.read) == (5 * MIB, 5 * MIB)


def test_checksums_are_made_in_host_memory(tmp_path):
    use(tmp_path, files := GdsFiles())
    x = torch.randn(MIB)
    assert torch.equal(bring(hold(x, "nvme", direct(tmp_path, verify=True)), x, "nvme"), x)
    assert not files.opened


def test_both_ways_share_a_file(tmp_path):
    use(tmp_path, files := GdsFiles())
    values = [torch.randn(MIB // 4 + i) for i in range(6)]
    told = [direct(tmp_path) if i % 2 else options(tmp_path) for i in range(6)]
    held = [hold(x, "nvme", how, f"x{i}") for i, (x, how) in enumerate(zip(values, told, strict=True))]
    for x, h in zip(values, held, strict=True):
        assert torch.equal(bring(h, x, "nvme"), x)
    assert files.opened == 1 and len(files.of("save")) == 3


class Gate:
    """An event of the compute stream that has not happened yet."""

    def __init__(self):
        self.opened, self.asked = threading.Event(), threading.Event()

    def synchronize(self):
        self.asked.set()
        assert self.opened.wait(10)


@pytest.mark.parametrize("kind", ["save", "load"])
def test_nothing_moves_before_the_compute_stream_is_there(tmp_path, kind):
    tier = use(tmp_path, files := GdsFiles())
    x = torch.randn(6 * MIB // 4)
    transfer = tier.offload("x", x, Settings(str(tmp_path), gpudirect=True))
    if kind == "load":
        transfer.finish()
        y = tier.empty(transfer.value, transfer.value.layout)
        transfer = tier.reload(transfer.value, y)
    transfer.ready = gate = Gate()
    transfer.start()
    assert gate.asked.wait(10) and not files.of(kind)
    gate.opened.set()
    transfer.finish()
    assert len(files.of(kind)) == 2
    if kind == "load":
        assert torch.equal(x, y)


@pytest.mark.parametrize("kind", ["save", "load"])
def test_memory_stays_until_the_call_returns(tmp_path, kind):
    """A ticket that is dropped while cuFile reads or writes the memory: the allocator must not have it back yet."""
    inside, leave = threading.Event(), threading.Event()

    class Slow(GdsFiles):
        def asked(self, asked, storage, offset):
            super().asked(asked, storage, offset)
            if asked == kind and len(self.calls) > 2:
                inside.set()
                assert leave.wait(10)

    tier = use(tmp_path, Slow())
    memory = mmap.mmap(-1, MIB)
    x = torch.frombuffer(memory, dtype=torch.uint8)
    gone = weakref.ref(memory)
    del memory
    if kind == "save":
        begun = ops.offload_start(x, "x", "nvme", direct(tmp_path))
    else:
        held = hold(torch.ones_like(x), "nvme", direct(tmp_path))
        begun = tier.reload(nvme_value(held), x)
        begun.start()
    assert inside.wait(10)
    if kind == "load":
        begun.cancel()
    del begun, x
    gc.collect()
    assert gone() is not None
    leave.set()
    assert settled(lambda: gone() is None)


def settled(condition):
    from time import monotonic, sleep

    deadline = monotonic() + 10
    while not condition() and monotonic() < deadline:
        sleep(0.01)
    return condition()


@pytest.mark.parametrize("kind", ["save", "load"])
def test_a_failed_call_stops_the_step_that_needs_the_value(tmp_path, kind):
    use(tmp_path, files := GdsFiles())
    x = torch.randn(6 * MIB // 4, requires_grad=True)
    room = runtime.prepare("cpu", direct(tmp_path), nvme_bytes=64 * MIB)
    for _ in range(2):
        files.fail = {kind: f"cuFile {kind} failed: Input/output error"}
        with pytest.raises(OffloadError, match=f"GPUDirect: cuFile {kind} failed: Input/output error$") as caught:
            Cube.apply(x, "nvme", direct(tmp_path), "mul_3").sum().backward()
        assert (caught.value.value, caught.value.tier, caught.value.path) == ("mul_3", "nvme", str(tmp_path))
        assert x.grad is None
        del caught
        files.fail = {}
        Cube.apply(x, "nvme", direct(tmp_path), "mul_3").sum().backward()
        assert torch.equal(x.grad, 3 * x.detach() ** 2)
        x.grad = None
    room.close()


def test_a_failed_call_does_not_keep_the_memory(tmp_path):
    tier = use(tmp_path, files := GdsFiles())
    memory = mmap.mmap(-1, MIB)
    gone = weakref.ref(memory)
    runtime.prepare("cpu", direct(tmp_path), nvme_bytes=MIB)
    tier.register()
    files.fail = {"save": "no"}
    transfer = tier.offload("x", torch.frombuffer(memory, dtype=torch.uint8), Settings(gpudirect=True))
    with pytest.raises(OffloadError, match="GPUDirect: no"):
        transfer.finish()
    transfer.cancel()
    lost = transfer.value
    del memory, transfer
    assert settled(lambda: gc.collect() is not None and gone() is None) and lost.lost


class Wrong(Gds):
    def load_storage(self, storage, offset=0):
        super().load_storage(storage, offset)
        storage[77] ^= 1


REFUSALS = {
    "cuFileHandleRegister failed: GPUDirect Storage not supported": GdsFiles(
        open="cuFileHandleRegister failed: GPUDirect Storage not supported"
    ),
    "GPUDirect: cuFileWrite failed": GdsFiles(save="cuFileWrite failed"),
    "GPUDirect: a page did not come back as it was written": lambda path, flags: Wrong(GdsFiles(), path, flags),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_file_that_cannot_be_registered_is_staged_and_says_so(tmp_path, reason):
    file = use(tmp_path, REFUSALS[reason])
    room = runtime.prepare("cpu", direct(tmp_path), nvme_bytes=MIB)
    assert file.refusal == reason
    x = torch.randn(MIB)
    assert torch.equal(bring(hold(x, "nvme", direct(tmp_path)), x, "nvme"), x)
    assert notes(tmp_path) == [f"{tmp_path}: staged: GPUDirect was refused: {reason}"]
    assert runtime.statistics().gpudirect == ()
    assert runtime.gpudirect_refusal(str(tmp_path), "cpu") == reason
    room.close()


def test_the_page_that_is_tried_lies_within_the_limit(tmp_path):
    use(tmp_path, files := GdsFiles())
    x = torch.randint(0, 256, (MIB,), dtype=torch.uint8)
    limit = runtime.room(x.nbytes, "nvme", "cpu")
    held = hold(x, "nvme", direct(tmp_path, limit=limit))  # the value takes all of the file
    assert runtime.statistics().nvme_file == limit and not files.of("save")
    assert "its limit is" in notes(tmp_path)[0]
    assert torch.equal(bring(held, x, "nvme"), x)


def test_a_folder_without_a_file_is_a_refusal_until_a_value_needs_it(tmp_path):
    use(tmp_path / "missing", GdsFiles())
    reason = runtime.gpudirect_refusal(str(tmp_path / "missing"), "cpu")
    assert reason == "no scratch file can be opened: No such file or directory"
    with pytest.raises(OffloadError, match="value 'x', tier 'nvme', in .*missing: no scratch file can be opened"):
        hold(torch.zeros(3), "nvme", direct(tmp_path / "missing"))


def test_values_of_the_cpu_stay_where_they_lie(tmp_path):
    assert "where they lie" in runtime.gpudirect_refusal(str(tmp_path), "cpu")
    x = torch.randn(MIB)
    assert torch.equal(bring(hold(x, "nvme", direct(tmp_path)), x, "nvme"), x)


def test_a_buffered_file_is_not_registered(tmp_path):
    class Buffered(Calls):
        def open(self, path, flags, mode):
            if flags & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return super().open(path, flags, mode)

    use(tmp_path, files := GdsFiles(), Buffered())
    assert runtime.gpudirect_refusal(str(tmp_path), "cpu") == "the file system takes no O_DIRECT"
    assert not files.opened


def test_each_file_is_registered_once_and_leaves_before_it_is_closed(tmp_path):
    order = []

    class Closing(Calls):
        def close(self, file):
            order.append(files.closed)
            super().close(file)

    tier = use(tmp_path, files := GdsFiles(), Closing())
    rooms = [runtime.prepare("cpu", direct(tmp_path), nvme_bytes=MIB) for _ in range(3)]
    assert files.opened == 1 and tier.slots.live == 0
    for room in rooms:
        room.close()
    assert order == [1] and tier.gpudirect is None
    assert runtime.gpudirect_refusal(str(tmp_path), "cpu") == ""
    assert order == [1, 2] and tier.slots.total == 0


def test_destinations_on_the_cpu_begin_at_a_page(tmp_path):
    """So that the kernel reads straight into them where a value that was written direct is read in place."""
    tier = use(tmp_path, GdsFiles())
    x = torch.randn(MIB)
    value = nvme_value(hold(x, "nvme", direct(tmp_path)))
    tier.gpudirect = None
    y = tier.empty(value, value.layout)
    nvme._InPlaceBack(value, y, tier).finish()
    assert torch.equal(x, y)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sanitizing", [False, True])
@pytest.mark.parametrize("size", [4 * KIB, 4 * MIB + 4, 16 * MIB])
def test_cuda_round_trips_under_load(tmp_path, size, sanitizing):
    if reason := runtime.gpudirect_refusal(str(tmp_path), "cuda"):
        pytest.skip(f"GPUDirect: {reason}")
    busy = torch.randn(4096, 4096, device="cuda")
    with runtime.sanitized() if sanitizing else contextlib.nullcontext():
        for _ in range(5):
            values = [torch.empty(size // 4 + 3, device="cuda")[3:] for _ in range(4)]  # no address at a page
            for i, x in enumerate(values):
                busy = (busy @ busy).softmax(0)  # so that the bytes are not there yet when the copy is started
                x.copy_(busy.view(-1)[0] + torch.arange(i, i + x.numel(), device="cuda"))
            held = [hold(x, "nvme", direct(tmp_path), f"x{i}") for i, x in enumerate(values)]
            assert runtime.statistics("cuda").gpudirect == (str(tmp_path),)
            copies = [x.clone() for x in values]
            for x in values:
                x.fill_(0)
            del values, x
            for y, h in zip(reversed(copies), reversed(held), strict=True):
                busy = (busy @ busy).softmax(0)
                torch.full_like(y, 7.0)  # the memory that comes back into use has work queued on it
                assert torch.equal(bring(h, y, "nvme"), y)
    assert not notes(tmp_path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_says_which_way_it_goes(tmp_path):
    reason = runtime.gpudirect_refusal(str(tmp_path), "cuda")
    x = torch.randn(MIB, device="cuda")
    assert torch.equal(bring(hold(x, "nvme", direct(tmp_path)), x, "nvme"), x)
    assert bool(runtime.statistics("cuda").gpudirect) is (not reason) and bool(notes(tmp_path)) is bool(reason)
