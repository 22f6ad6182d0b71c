"""What a recording on the CPU says of what was allocated before it began."""

import gc
from types import SimpleNamespace

import torch

from memgraph.step.recording import CpuRecorder, Moment

MIB = 1 << 20


def marks(work, alive, level=10 * MIB):
    """The level and the peak at a mark after each part of `work`; `alive` yields what was allocated before.

    That alone is watched: what another test has left may go meanwhile, and cycles of it go before.
    """
    gc.collect()
    recorder = CpuRecorder(level, alive)
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
