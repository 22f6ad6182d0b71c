"""What a recording on the CPU says of what was allocated before it began."""

import gc
from types import SimpleNamespace

import torch

from memgraph.machine.measure import Counters
from memgraph.step import recording
from memgraph.step.recording import CpuRecorder, LaunchRecorder, Moment
from tests.support.blocks import at_an_address_that_was_recorded

MIB = 1 << 20


def marks(work, alive, level=10 * MIB):
    """The level and the peak at a mark after each part of `work`; `alive` yields what was allocated before.

    That alone is watched: what another test has left may go meanwhile, and cycles of it go before.
    """
    gc.collect()
    recorder = CpuRecorder(level, lambda: alive)
    launches = [SimpleNamespace(marks={}) for _ in work]
    for part, launch in zip(work, launches, strict=True):
        part()
        recorder.mark(launch, Moment.FORWARD)
    recorder.stop()
    found = (launch.marks[Moment.FORWARD] for launch in launches)
    return [(mark.level, mark.peak) for mark in found]


def full():
    return torch.empty(3 * MIB, dtype=torch.uint8)


def test_a_storage_that_is_emptied_lowers_the_level():
    """As FSDP2 empties the parameters that were gathered for the first launch, before the recording began."""
    gathered = full()
    found = marks([lambda: None, lambda: gathered.untyped_storage().resize_(0), lambda: full()], [gathered])
    assert found == [(10 * MIB, 10 * MIB), (7 * MIB, 10 * MIB), (7 * MIB, 10 * MIB)]


def test_it_does_so_once_where_an_earlier_recording_saw_it_filled():
    kept = []
    marks([lambda: kept.append(full())], [])
    assert marks([lambda: kept[0].untyped_storage().resize_(0)], kept) == [(7 * MIB, 10 * MIB)]


def test_it_may_be_filled_again():
    gathered = full()
    storage = gathered.untyped_storage()
    found = marks(
        [lambda: storage.resize_(0), lambda: storage.resize_(3 * MIB), lambda: storage.resize_(0)], [gathered]
    )
    assert [level for level, _ in found] == [7 * MIB, 10 * MIB, 7 * MIB]


def test_a_storage_that_goes_lowers_the_level():
    gathered = [full()]
    view = [gathered[0][1:]]
    found = marks([gathered.clear, view.clear], iter([*gathered, *view]))  # the view holds it
    assert found == [(10 * MIB, 10 * MIB), (7 * MIB, 10 * MIB)]


def test_a_storage_that_autograd_holds_still_counts():
    leaf = torch.ones(MIB, requires_grad=True)  # 4 MiB
    saved = [leaf * 1]
    result = [saved[0] * saved[0]]
    found = marks([saved.clear, result.clear], iter([leaf, *saved, *result]))
    assert found == [(10 * MIB, 10 * MIB), (2 * MIB, 10 * MIB)]


def test_a_free_that_is_listed_with_the_size_of_a_block_of_long_ago_does_not_count():
    kept = [at_an_address_that_was_recorded(3 * MIB)]
    size = kept[0].nbytes
    found = marks([kept.clear], iter([*kept]))  # pytest would hold the list while it looks at an assertion
    assert found == [(10 * MIB - size, 10 * MIB)]


def compile_meanwhile(recorder, work=lambda: None):
    """`work` runs in a pause of the recording: no profiler is on."""
    recorder.pause()
    assert not torch.autograd._profiler_enabled()
    work()
    gc.collect()
    recorder.resume()


def recorded(*parts, alive=lambda: ()):
    """As `marks`; the parts are given the recorder."""
    gc.collect()
    recorder = CpuRecorder(10 * MIB, alive)
    launches = [SimpleNamespace(marks={}) for _ in parts]
    for part, launch in zip(parts, launches, strict=True):
        part(recorder)
        recorder.mark(launch, Moment.FORWARD)
    recorder.stop()
    found = [launch.marks[Moment.FORWARD] for launch in launches]
    assert [mark.since for mark in found] == [None, *((launch, Moment.FORWARD) for launch in launches[:-1])]
    return [(mark.level // MIB, mark.peak // MIB) for mark in found]


def test_what_a_compilation_allocates_for_a_moment_is_no_part_of_a_round():
    found = recorded(lambda recorder: compile_meanwhile(recorder, full), lambda _: full())
    assert found == [(10, 10), (10, 13)]


def test_what_was_made_before_a_pause_counts_until_it_goes():
    """The saved tensors of a launch, of which Python does not know: the next graph is compiled while they stand."""
    leaf = torch.ones(MIB, requires_grad=True)
    saved = []
    found = recorded(
        lambda _: saved.append((leaf * 1).pow(2)),  # 4 MiB that autograd holds, and 4 MiB
        compile_meanwhile,
        lambda _: saved.clear(),
    )
    assert found == [(18, 18), (18, 18), (10, 18)]


def test_what_goes_or_comes_in_a_pause_counts():
    kept = []

    def exchange():
        kept.clear()
        kept.append(torch.empty(MIB, dtype=torch.uint8))

    found = recorded(
        lambda _: kept.append(full()),
        lambda recorder: compile_meanwhile(recorder, exchange),
        lambda _: kept.clear(),
        alive=lambda: list(kept),
    )
    assert found == [(13, 13), (11, 13), (10, 11)]


def test_what_was_there_before_and_goes_in_a_pause_counts_once():
    kept = [full()]
    found = recorded(
        lambda _: None,
        lambda recorder: compile_meanwhile(recorder, kept.clear),
        lambda _: full(),
        alive=lambda: list(kept),
    )
    assert found == [(10, 10), (7, 10), (7, 10)]


def test_so_it_is_within_launches():
    kept = [at_an_address_that_was_recorded(3 * MIB)]
    launch = SimpleNamespace(marks={}, entry=SimpleNamespace(level=10 * MIB), dropped=0, given=0)
    recorder = LaunchRecorder()
    recorder.mark(launch, Moment.FORWARD)
    kept.clear()  # its forward frees what was not there, as far as its plan goes
    saved = [full()]
    recorder.mark(launch, Moment.RETURN)
    launch.entry.level = 0  # the level of the backward is what the forward has left
    recorder.mark(launch, Moment.BACKWARD)
    saved.clear()
    recorder.mark(launch, Moment.END)
    found = [(mark.level, mark.peak) for mark in launch.marks.values()]
    level, more = 10 * MIB, 13 * MIB
    assert found == [(level, level), (more, more), (more, more), (level, more)]


def test_on_cuda_what_a_compilation_reaches_is_no_peak_of_a_round(monkeypatch):
    now = {"level": 10, "highest": 50}

    def reach(level, highest):
        now.update(level=level, highest=max(now["highest"], highest))

    monkeypatch.setattr(recording, "counters", lambda device: Counters(now["level"], now["highest"], 0))
    recorder = recording.CudaRecorder(torch.device("cuda"))
    launches = [SimpleNamespace(marks={}) for _ in range(4)]
    reach(20, 60)
    recorder.mark(launches[0], Moment.FORWARD)
    reach(20, 70)  # outside of the graphs, and then kernels are tried
    recorder.pause()
    reach(20, 100)
    recorder.resume()
    recorder.mark(launches[1], Moment.FORWARD)
    reach(30, 90)  # below what the compilation has reached
    recorder.mark(launches[2], Moment.FORWARD)
    reach(30, 110)
    recorder.mark(launches[3], Moment.FORWARD)
    found = [launch.marks[Moment.FORWARD] for launch in launches]
    assert [(mark.level, mark.peak, mark.seen) for mark in found] == [
        (20, 60, True),
        (20, 70, True),
        (30, 30, False),
        (30, 110, True),
    ]
