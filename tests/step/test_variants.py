"""What a plan takes, and where it is valid."""

import weakref

import pytest
import torch

from memgraph.planner.decisions import Event, Timeline
from memgraph.step.launched import Launched
from memgraph.step.meter import Arguments, Meter, bytes_standing, standing
from memgraph.step.run import Run
from memgraph.step.variants import Entry, Envelope, Variant

FORWARD = (Event("forward", "a", 6), Event("forward", "b", 4), Event("forward", "b", -4))
BACKWARD = (Event("backward", "c", 5), Event("backward", "a", -6), Event("backward", "c", -5))


def test_an_envelope_is_read_from_a_timeline():
    assert Envelope.of(Timeline(FORWARD + BACKWARD)) == Envelope(forward=10, held=6, backward=11)
    assert Envelope.of(Timeline(FORWARD)) == Envelope(forward=10, held=6, backward=6)
    assert Envelope.of(Timeline()) == Envelope()


def linear(reads):
    """A plan that takes ten bytes a token; `reads` lists the sizes for which its code is read."""

    def read(sizes):
        reads.append(sizes)
        return Envelope(10 * sizes[0], 0, 10 * sizes[0])

    return Variant(print, 1.0, {(8,): Envelope(80, 0, 80)}, read)


def test_smaller_sizes_are_covered_and_larger_ones_are_read_once():
    reads = []
    variant = linear(reads)
    assert variant.envelope((4,)).peak == 80 and not reads
    assert variant.envelope((16,)).peak == variant.envelope((16,)).peak == 160 and reads == [(16,)]
    assert variant.envelope((12,)).peak == 160 and reads == [(16,)]


def test_a_plan_is_valid_up_to_a_level_and_a_size():
    variant = linear([])
    assert variant.fits(Entry(20, 0, (8,)), 100) and not variant.fits(Entry(21, 0, (8,)), 100)
    assert not variant.fits(Entry(10, 11, (8,)), 100)  # what is to come counts
    assert not variant.fits(Entry(0, 0, (11,)), 100)


def test_without_code_to_read_a_larger_size_is_not_known():
    variant = Variant(print, 1.0, {(8,): Envelope(80, 0, 80)})
    assert variant.fits(Entry(0, 0, (8,)), 100) and not variant.fits(Entry(0, 0, (9,)), 100)


def test_arguments_that_tell_of_a_launch():
    weight = torch.nn.Parameter(torch.zeros(3))
    hidden = weight * 2
    arguments = Arguments.of([weight, torch.zeros(2), hidden])
    assert arguments.parameters == (0,) and arguments.sizes == ()
    leaves = arguments.leaves([weight, torch.zeros(2), hidden])
    assert (standing(leaves), bytes_standing(leaves)) == (0, 0)
    hidden.sum().backward()
    assert (standing(leaves), bytes_standing(leaves)) == (1, 12)


@pytest.mark.parametrize("lasting", [(5, 0), (3, 2), (0, 5)])
def test_the_lasting_level(lasting):
    assert Entry(*lasting).lasting == 5


def test_code_that_cannot_be_read_ends_no_run():
    def read(sizes):
        raise ValueError("no")

    variant = Variant(print, 1.0, {(8,): Envelope(80, 0, 80)}, read)
    assert variant.envelope((9,)) is None and not variant.fits(Entry(0, 0, (9,)), 1000)


def test_gradients_of_graphs_that_come_later_stand_in_the_backward():
    variant = Variant(print, 1.0, {(): Envelope(90, 10, 50)})
    assert variant.fits(Entry(10, later=40), 100)
    assert not variant.fits(Entry(10, later=41), 100) and not variant.fits(Entry(11), 100)


def test_a_launch_knows_which_gradients_come_before_its_backward():
    """Three layers, a graph each, and one optimizer: the first forward has the last backward."""
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(3)]
    optimizer = torch.optim.SGD([layer.weight for layer in layers])
    run, size, found = Run(), 8 * 8 * 4, []
    meters = [Meter(torch.device("cpu"), Arguments.of([layer.weight]), run) for layer in layers]
    meters[2].ends = True
    for meter, layer in zip(meters, layers, strict=True):
        entry = meter.entry([layer.weight])
        run.round.append(Launched(weakref.ref(meter), entry, run.round, ()))
        found.append((entry.later, entry.own))
    assert found == [(2 * size, size), (size, size), (0, size)]
    optimizer.param_groups.clear()
