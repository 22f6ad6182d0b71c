"""Levels of whole blocks: on CUDA a tensor may count as more than was asked for, and not in each step."""

import gc

import pytest
import torch

from memgraph.base.errors import BudgetError
from memgraph.machine import caching_allocator
from memgraph.machine.measure import Counters
from memgraph.step import meter, recording
from memgraph.step.meter import Arguments, Meter
from memgraph.step.run import Run
from tests.step.toys import KIB, Device, Held, World, layers, step

REST, MOST = 4 * KIB, 8 * KIB


class UncutDevice(Device):
    """Each third block is larger than what is asked for, up to MOST of all: not the same ones in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.uncut = self.count = 0

    def hold(self, size: int) -> Held:
        self.count += 1
        return Block(self, size, REST if self.count % 3 == 0 and self.uncut + REST <= MOST else 0)

    def counters(self, device: torch.device) -> Counters:
        return Counters(self.level, self.peak, self.level - self.uncut)


class Block(Held):
    """Bytes that count as `rest` more."""

    def __init__(self, device: UncutDevice, size: int, rest: int) -> None:
        self.rest = rest
        device.uncut += rest
        super().__init__(device, size + rest)

    def __del__(self) -> None:
        super().__del__()
        self.device.uncut -= self.rest


@pytest.fixture
def device(monkeypatch):
    """A toy device that counts as CUDA's allocator does."""
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr(caching_allocator, "SEVERAL_GRAPHS", MOST)
    found = UncutDevice()
    for module in (meter, recording):
        monkeypatch.setattr(module, "counters", found.counters)
    return found


def on_cuda(graph, run):
    graph.meter = Meter(torch.device("cuda"), Arguments(), run)
    graph.meter.ends = graph.ends


def steps(device, room, count=6):
    """The highest peak of so many steps of four layers and a loss, and how many layers run their faster plan then."""
    world = World(room)
    world.device = device
    graphs = layers(world, 4)
    for graph in dict.fromkeys(graphs):
        on_cuda(graph, world.run)
    peak = max(step(world, graphs) for _ in range(count))
    return peak, sum(launch.variant().seconds == 1.0 for launch in world.run.round[:4])


@pytest.mark.parametrize("most", [74, 78, 94, 114])
def test_blocks_that_count_as_more_in_later_steps_pass_no_budget(device, most):
    """Without room for them each of these was passed by 2 KiB. Where one is refused, what is named is kept."""
    device.count, room = most, most * KIB  # another block is larger at each budget
    try:
        peak, fast = steps(device, room)
    except BudgetError as refused:
        room = refused.minimum
    if room > most * KIB:
        gc.collect()
        assert device.level == 0
        peak, fast = steps(device, room)
    assert peak <= room <= max(most, 84) * KIB
    assert fast == {74: 1, 78: 1, 94: 2, 114: 3}[most]


def test_a_step_of_one_graph_has_its_own_blocks_alone(device):
    run = Run()
    alone, one = (Meter(torch.device("cuda"), Arguments(), run) for _ in range(2))
    alone.ends = True
    standing = device.hold(10 * KIB), device.hold(10 * KIB), device.hold(10 * KIB)
    assert device.uncut == REST
    found = alone.entry(()), one.entry(())
    assert [entry.uncut for entry in found] == [REST] * 2
    assert [entry.lasting - device.level for entry in found] == [0, MOST]
    del standing


def test_expanded_segments_leave_nothing_uncut(device, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    found = Meter(torch.device("cuda"), Arguments(), Run()).entry(())
    assert found.lasting == found.level
