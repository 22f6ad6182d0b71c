"""Rounds of training loops that go their own way: a forward alone, a retained graph, hooks, garbage, two devices."""

import gc
import weakref

import pytest
import torch

from memgraph.base import compat
from memgraph.base.errors import PlanWarning
from memgraph.step.recording import Moment
from tests.step.toys import KIB, World, layers, plan, step


def test_a_forward_without_a_backward_holds_nothing_for_long():
    world = World(130 * KIB)
    graphs = layers(world, 2)
    graphs[0].launch(torch.ones(1, requires_grad=True))
    gc.collect()
    assert world.run.depth() == 0
    assert step(world, graphs) <= 130 * KIB


def test_a_graph_without_a_backward_does_not_keep_a_round_from_being_learned():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    metric = world.graph([plan(20, 5, 20, 0.1)], ends=False)

    def with_metric():
        metric.launch(torch.ones(1))
        return step(world, graphs)

    peaks = [with_metric() for _ in range(4)]
    assert max(peaks) <= 130 * KIB and peaks[2] > peaks[0]


@pytest.mark.parametrize("alike", [False, True])
def test_what_one_ranks_caller_drops_decides_nothing_for_others(alike):
    world = World(100 * KIB)
    loss = world.graph([plan(10, 2, 40, 1.0)], ends=True)
    loss.alike = alike
    step(world, [loss])
    assert (world.run.round[-1].returned is None) == alike


def test_a_loss_that_another_one_follows_does_not_end_its_rounds():
    world = World(200 * KIB)
    first, second = (world.graph([plan(10, 2, 40, 1.0)], ends=True) for _ in range(2))
    first.dropped = (0,)  # as steps without the second have shown
    for _ in range(2):
        sum(graph.launch(torch.ones(1, requires_grad=True))[0] for graph in (first, second)).sum().backward()
    world.run.stop_recording()
    assert (first.ends, second.ends, first.dropped) == (False, True, ())


def test_a_retained_graph_that_runs_again_in_a_later_round_is_no_part_of_it():
    world = World(200 * KIB)
    loss = world.graph([plan(10, 2, 40, 1.0)], ends=True)
    loss.retained = True
    x = torch.ones(1, requires_grad=True)
    (first,) = loss.launch(x)
    first.sum().backward(retain_graph=True)
    launch = world.run.round[0]
    outputs = [loss.launch(x)[0] for _ in range(2)]
    first.sum().backward()
    assert launch.open_in_backward == ()
    sum(outputs).sum().backward()
    assert world.run.ledger.report().rounds


def test_an_optimizer_that_steps_in_the_hooks_of_a_backward_ends_no_recording():
    """What it allocates is part of the round. It stood in the way of the marks of all backwards that came after it."""
    world = World(130 * KIB)
    graphs = layers(world, 4)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])

    def stepped(gradient):
        world.run.stepped(optimizer)
        return gradient

    def whole():
        world.device.reset()
        x = torch.ones(1, requires_grad=True)
        for graph in graphs:
            (x,) = graph.launch(x)
            x.register_hook(stepped)
        x.sum().backward()
        return world.device.peak

    peaks = [whole()]
    world.run.stop_recording()
    assert all(Moment.END in launch.marks for launch in world.run.round)
    peaks += [whole() for _ in range(3)]
    assert peaks[0] < peaks[1] == peaks[2] == peaks[3] <= 130 * KIB
    world.run.stop_recording()
    assert not compat.profiling()


def test_a_round_that_was_recorded_in_part_tells_nothing():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    step(world, graphs)
    for launch in world.run.round[:3]:  # as where a profiler of the user's runs from the middle of the backward on
        del launch.marks[Moment.BACKWARD], launch.marks[Moment.END]
    peaks = [step(world, graphs) for _ in range(3)]
    assert peaks[0] < peaks[1] == peaks[2] <= 130 * KIB


def test_graphs_of_two_devices_share_no_room():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    graphs[-1].meter.device = torch.device("meta")
    peaks = [step(world, graphs) for _ in range(3)]
    assert peaks[0] == peaks[1] == peaks[2]


def test_the_plans_of_a_model_that_is_gone_go_with_it():
    world = World(130 * KIB)
    graphs = layers(world, 4)
    for _ in range(3):
        step(world, graphs)
    variants = [weakref.ref(variant) for graph in graphs for variant in graph.variants]
    del graphs
    gc.collect()
    assert not any(variant() for variant in variants)


class Training(torch.autograd.Function):
    """A launch that holds 20 KiB until its backward, which makes a gradient of 50 KiB."""

    @staticmethod
    def forward(ctx, x, device, gradients):
        ctx.device, ctx.gradients, ctx.held = device, gradients, device.hold(20 * KIB)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.gradients.append(ctx.device.hold(50 * KIB))
        ctx.held = None
        return gradient, None, None


def test_gradients_that_another_launch_of_a_loss_leaves_are_told_of():
    """Two losses are added up: the gradients of the second stand when the backward of the first begins."""
    world, gradients = World(100 * KIB), []
    loss = world.graph([plan(20, 20, 70, 1.0)], ends=True)
    loss.variants[0].call = lambda x: (Training.apply(x, world.device, gradients),)
    first, second = (loss.launch(torch.ones(1, requires_grad=True))[0] for _ in range(2))
    with pytest.warns(PlanWarning, match="has reached 120.0 KiB, above its budget of 100.0 KiB: with what else"):
        (first + second).sum().backward()
    assert world.device.peak == 120 * KIB


def test_garbage_refuses_no_round():
    world = World(100 * KIB)
    graphs = layers(world, 4)
    for _ in range(2):
        step(world, graphs)
    circle = [world.device.hold(40 * KIB)]
    circle.append(circle)
    gc.disable()
    try:
        del circle
        assert world.device.level == 40 * KIB
        assert step(world, graphs) <= 100 * KIB and world.device.level == 0
    finally:
        gc.enable()
