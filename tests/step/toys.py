"""Graphs that only allocate, as real tensors and counted, what their plans' envelopes say; and rounds over them."""

from __future__ import annotations

import dataclasses
import gc

import torch

from memgraph.base.errors import BudgetError
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.graph import StepGraph
from memgraph.step.rounds import Rounds
from memgraph.step.run import Run
from memgraph.step.variants import Entry, Envelope, Offer, Variant

KIB = 1024


class Device:
    """Bytes that are allocated, and the most so far."""

    def __init__(self) -> None:
        self.level = self.peak = 0

    def hold(self, size: int) -> Held:
        return Held(self, size)

    def reset(self) -> None:
        self.peak = self.level


class Held:
    """Bytes that stand until the last reference goes."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        self.tensor = torch.empty(size, dtype=torch.uint8)
        device.level += size
        device.peak = max(device.peak, device.level)

    def __del__(self) -> None:
        self.device.level -= self.size


class Toy(torch.autograd.Function):
    """One launch: the forward reaches its peak and leaves what is held, the backward reaches its own."""

    @staticmethod
    def forward(ctx, x, device, envelope):
        transient = device.hold(envelope.forward)
        del transient
        ctx.device, ctx.envelope, ctx.held = device, envelope, device.hold(envelope.held)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        transient = ctx.device.hold(ctx.envelope.backward - ctx.envelope.held)
        del transient
        ctx.held = None
        return gradient, None, None


@dataclasses.dataclass
class CountingMeter:
    """Reads the level of a toy device."""

    toy: Device
    run: Run
    to_come: int = 0
    device: torch.device = torch.device("cpu")
    forecasts: tuple[OptimizerForecast, ...] = ()

    def entry(self, args) -> Entry:
        return Entry(self.toy.level, self.to_come, others=self.run.held())

    def tidy(self) -> None:
        """Nothing is compiled here that could leave something."""

    def exact(self, entry: Entry, args) -> Entry:
        gc.collect()
        return dataclasses.replace(entry, level=self.toy.level, others=0)


class World:
    """A toy device with a budget, and the graphs on it."""

    def __init__(self, room: int) -> None:
        gc.collect()  # a recording must not see what another world has left go
        self.device, self.run, self.room = Device(), Run(), room
        self.rounds = Rounds(self.run)
        self.made = 0

    def graph(self, menu: list[tuple[Envelope, float]], ends: bool) -> StepGraph:
        """A graph with these plans: the first launch finds the lightest compiled, or, of one that ends, what fits."""
        return _Maker(self, menu, ends).graph


class _Maker:
    def __init__(self, world: World, menu: list[tuple[Envelope, float]], ends: bool) -> None:
        self.world, self.menu, self.ends = world, menu, ends
        self.meter = CountingMeter(world.device, world.run)
        lightest = min(menu, key=lambda plan: plan[0].peak + 7 * plan[0].held)
        first = self.variant(lightest)
        first.offers = tuple(Offer(e, s, e.peak, e.held) for e, s in menu if (e, s) != lightest)
        self.graph = StepGraph(first, world.room, self.meter, world.rounds, self, ends=ends)

    def variant(self, plan: tuple[Envelope, float]) -> Variant:
        envelope, seconds = plan
        self.world.made += 1
        return Variant(lambda x: (Toy.apply(x, self.world.device, envelope),), seconds, {(): envelope})

    def make(self, entry: Entry, args, dropped=()) -> Variant:
        def reaches(plan) -> int:
            return max(plan[0].peak, plan[0].held + entry.between)

        fits = [plan for plan in self.menu if reaches(plan) <= self.world.room - entry.lasting]
        if not fits:
            least = min(map(reaches, self.menu))
            raise BudgetError(minimum=entry.lasting + least, budget=self.world.room)
        key = (lambda plan: plan[1]) if self.ends else (lambda plan: plan[0].peak)
        return self.variant(min(fits, key=key))

    def realise(self, offer: Offer, entry: Entry) -> Variant:
        return self.variant((offer.envelope, offer.seconds))


def plan(forward, held, backward, seconds):
    return Envelope(forward * KIB, held * KIB, backward * KIB), seconds


LIGHT, FAST = plan(40, 4, 60, 2.0), plan(40, 24, 44, 1.0)


def step(world, graphs, outside=0):
    """One round over the graphs in their order, with `outside` bytes for a moment before the backward; its peak."""
    world.device.reset()
    x = torch.ones(1, requires_grad=True)
    for graph in graphs:
        (x,) = graph.launch(x)
    moment = world.device.hold(outside)
    del moment
    x.sum().backward()
    del x
    world.run.stop_recording()  # as an optimizer's step does
    return world.device.peak


def layers(world, count, menu=(LIGHT, FAST)):
    """A layer's graph as often as it is launched, and the graph of a loss."""
    layer, loss = world.graph(list(menu), ends=False), world.graph([plan(10, 2, 10, 0.1)], ends=True)
    return [layer] * count + [loss]
