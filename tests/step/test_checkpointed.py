"""Forwards inside of torch.utils.checkpoint: run once more by the plan that they ran by, and held for nobody."""

import dataclasses

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.step.variants import Entry, Envelope, Variant
from tests.step.toys import KIB, World, plan


class Times(torch.autograd.Function):
    """x times itself, so often saved as a plan has it."""

    @staticmethod
    def forward(ctx, x, copies):
        ctx.save_for_backward(*[x] * copies)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient, None


class Graph:
    """A graph of two plans, which save different numbers of tensors; the second one comes later, and is faster."""

    def __init__(self, world: World) -> None:
        self.world, self.ran = world, []
        self.graph = self.world.graph([plan(10, 4, 20, 2.0)], ends=False)
        self.slow, self.fast = self._variant(1, 2.0), self._variant(2, 1.0)
        self.graph.variants, self.graph.retained = [self.slow], True
        entry = self.graph.meter.entry
        self.graph.meter.entry = lambda args: dataclasses.replace(
            entry(args), once_more=compat.checkpoint_around() is not None
        )

    def _variant(self, copies: int, seconds: float) -> Variant:
        def call(x):
            self.ran.append(copies)
            return (Times.apply(x, copies),)

        return Variant(call, seconds, {(): Envelope(10 * KIB, 4 * KIB, 20 * KIB)})

    def __call__(self, x):
        return checkpoint(lambda x: self.graph.launch(x)[0], x, use_reentrant=False)


@pytest.fixture
def world():
    made = World(200 * KIB)
    yield made
    made.run.stop_recording()
    assert not compat.profiling()


def test_a_forward_runs_once_more_by_the_plan_it_ran_by(world):
    graph, x = Graph(world), torch.tensor([3.0], requires_grad=True)
    y = graph(x)
    graph.graph.variants = [graph.slow, graph.fast]
    y.sum().backward()
    assert graph.ran == [1, 1] and x.grad.item() == 6.0
    graph(x).sum().backward()
    assert graph.ran == [1, 1, 2, 2] and x.grad.item() == 12.0


def test_each_launch_of_a_graph_by_its_own(world):
    graph, x = Graph(world), torch.tensor([3.0], requires_grad=True)
    y = graph(x)
    graph.graph.variants = [graph.slow, graph.fast]
    graph(y).sum().backward()
    assert graph.ran == [1, 2, 2, 1] and x.grad.item() == 4 * 27.0


def test_so_do_several_of_one_call_and_for_each_backward(world):
    graph, x = Graph(world), torch.tensor([3.0], requires_grad=True)

    def both(x):
        graph.graph.variants = [graph.slow]
        (y,) = graph.graph.launch(x)
        graph.graph.variants = [graph.slow, graph.fast]
        return graph.graph.launch(y)[0]

    y = checkpoint(both, x, use_reentrant=False)
    for times in (1, 2):
        y.sum().backward(retain_graph=True)
        assert graph.ran == [1, 2] * (times + 1) and x.grad.item() == times * 4 * 27.0


def test_another_graph_in_its_place_is_refused(world):
    first, second, x = Graph(world), Graph(world), torch.tensor([3.0], requires_grad=True)
    graphs = [first, second]
    y = checkpoint(lambda x: graphs.pop(0).graph.launch(x)[0], x, use_reentrant=False)
    with pytest.raises(GraphError, match="another graph ran in its place before"):
        y.sum().backward()
    assert (first.ran, second.ran, x.grad) == ([1], [], None)


def test_it_holds_no_more_than_its_outputs_until_then(world):
    graph, x = Graph(world), torch.zeros(KIB // 4, requires_grad=True)
    run = graph.world.run
    y = graph(x)
    assert run.depth() == 1 and run.held() == KIB
    assert run.round[0].envelope == Envelope(10 * KIB, KIB, 20 * KIB)
    y.sum().backward()
    assert run.depth() == 0 and len(run.round) == 1  # the second run is no launch


def test_those_before_it_in_its_region_stand_when_its_backward_begins(world):
    graph, x = Graph(world), torch.zeros(KIB // 4, requires_grad=True)
    run, found = graph.world.run, []

    def region(x):
        for _ in range(2):
            found.append(run.checkpointed.held_beside(compat.checkpoint_around()))
            (x,) = graph.graph.launch(x)
        return x

    checkpoint(region, x, use_reentrant=False).sum().backward()
    assert found[:2] == [0, 3 * KIB]
    assert [launch.envelope.backward for launch in run.round] == [20 * KIB, 23 * KIB]


def test_a_plan_fits_where_its_forward_does_beside_what_came_since():
    variant = Variant(lambda: None, 1.0, {(): Envelope(30 * KIB, 4 * KIB, 20 * KIB)})
    entry = Entry(0, later=10 * KIB)
    assert variant.fits(entry, 30 * KIB)
    entry = dataclasses.replace(entry, once_more=True)
    assert variant.fits(entry, 40 * KIB) and not variant.fits(entry, 40 * KIB - 1)


def test_no_recording_begins_within_a_backward(world):
    graph = world.graph([plan(10, 4, 20, 2.0)], ends=True)
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)

    def another_step(gradient):
        with torch.enable_grad():
            graph.launch(x)[0].sum().backward()

    y.register_hook(another_step)
    y.sum().backward()
    assert not compat.profiling() and not world.run.round[-1].marks
    graph.launch(x)[0].sum().backward()
    assert world.run.round[-1].recorded


def test_a_graph_that_is_kept_runs_backward_twice_while_it_is_recorded(world):
    graph = world.graph([plan(10, 4, 20, 2.0)], ends=True)
    graph.retained = True
    (y,) = graph.launch(torch.ones(1, requires_grad=True))
    y.sum().backward(retain_graph=True)
    first = dict(world.run.round[0].marks)
    y.sum().backward()
    assert world.run.round[0].marks == first and world.run.round[0].recorded


def test_what_is_not_planned_for_a_second_backward_is_said(world):
    graph = world.graph([plan(10, 4, 20, 2.0)], ends=True)
    (y,) = graph.launch(torch.ones(1, requires_grad=True))
    with pytest.warns(UserWarning, match="Option 'retain_graph': True plans for it"):
        y.sum().backward(retain_graph=True)
