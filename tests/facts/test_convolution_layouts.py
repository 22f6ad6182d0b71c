"""What the sweep knows of convolutions that Inductor lays out channels last: scratch, gradients, their copies."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import fx, nn

import memgraph
from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.facts.copied import read_channels_last
from memgraph.facts.kernel_scratch import nodes
from memgraph.planner.candidates import Candidates
from tests.support.graphs import capture_module
from tests.support.models.unet import GROUPS, Block

aten = torch.ops.aten


class Graph:
    """A graph of calls with the shapes that are given, on the CPU."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def input(self, *size: int) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        node.meta["val"] = torch.empty(size)
        return node

    def call(self, target, *args, size) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = torch.empty(size) if isinstance(size[0], int) else tuple(map(torch.empty, size))
        return node

    def backward(self, gradient: fx.Node, image: fx.Node, weight: fx.Node, groups: int = 1) -> fx.Node:
        dims = image.meta["val"].dim() - 2
        geometry = [1] * dims, [1] * dims, [1] * dims, False, [0] * dims, groups
        sizes = [tuple(operand.meta["val"].shape) for operand in (image, weight)]
        outputs = [*sizes, sizes[1][:1]]
        args = gradient, image, weight, list(sizes[1][:1]), *geometry, [True, True, True]
        return self.call(aten.convolution_backward.default, *args, size=outputs)


class Asked:
    """The kernels' scratch, of which only the strides of the operands matter here."""

    def __init__(self) -> None:
        self.strides: list[tuple[int, ...]] = []

    def bytes_of(self, op, args, kwargs, outputs, device="cpu") -> int:
        self.strides = [kernel_scratch.nodes.described(arg).stride for arg in args[:3]]
        return 0


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_backward_of_a_convolution_is_asked_for_as_inductor_calls_it(groups, copies, monkeypatch):
    asked, graph = Asked(), Graph()
    monkeypatch.setattr(nodes, "current", lambda: asked)
    monkeypatch.setattr(compat, "depthwise_backward_copies", lambda: copies)
    image, weight = graph.input(2, 8, 6, 4), graph.input(8, 8 // groups, 3, 3)
    node = graph.backward(graph.input(2, 8, 6, 4), image, weight, groups)
    found = kernel_scratch.of_node(node, "cpu")
    if groups == 8 and copies:
        assert asked.strides == [(192, 24, 4, 1), (192, 4, 32, 1), (9, 9, 3, 1)]
        assert found == image.meta["val"].nbytes
    else:
        last = [
            tensor.to(memory_format=torch.channels_last).stride() for tensor in map(torch.empty, ((2, 8, 6, 4),) * 2)
        ]
        few = 8 // groups
        assert asked.strides == [*last, (9 * few, 1, 3 * few, few)]
        assert found == 0


@pytest.mark.parametrize("device, dims", [("cpu", 1), ("cpu", 3), ("cuda", 2)])
def test_other_convolutions_are_called_as_they_lie(device, dims, monkeypatch):
    asked, graph = Asked(), Graph()
    monkeypatch.setattr(nodes, "current", lambda: asked)
    image, weight = graph.input(2, 8, *[4] * dims), graph.input(8, 8, *[3] * dims)
    node = graph.backward(graph.input(2, 8, *[4] * dims), image, weight)
    assert kernel_scratch.of_node(node, device) == 0
    if asked.strides:  # on CUDA there may be no rule for it
        assert asked.strides[1:] == [operand.meta["val"].stride() for operand in (image, weight)]
    assert asked.strides or device == "cuda"


def test_gradients_are_found_that_convolutions_read_channels_last():
    graph = Graph()
    image, weight, flat = graph.input(1, 8, 4, 4), graph.input(8, 8, 3, 3), (1, 2, 4, 16)

    def gradient(*readers: str, target=aten.mul.Tensor, args=(2.0,)) -> fx.Node:
        made = graph.call(target, graph.input(*flat), *args, size=flat)
        shown = graph.call(aten.view.default, made, [1, 8, 4, 4], size=(1, 8, 4, 4))
        for reader in readers:
            if reader == "gradient":
                graph.backward(shown, image, weight)
            elif reader == "image":
                graph.backward(image, shown, weight)
            else:
                graph.call(aten.add.Tensor, shown, 1.0, size=(1, 8, 4, 4))
        return made

    one, two, mixed = gradient("gradient"), gradient("gradient", "gradient"), gradient("gradient", "sum")
    gradient("image", "sum")  # as an image it is no gradient
    gradient("sum", "sum")
    gradient("gradient", target=aten.mm.default, args=(weight,))  # no pointwise value
    direct = graph.call(aten.mul.Tensor, image, 2.0, size=(1, 8, 4, 4))
    graph.backward(direct, image, weight)  # no view: it is written channels last
    last = graph.call(aten.mul.Tensor, image, 2.0, size=(1, 8, 4, 4))
    shown = graph.call(aten.view.default, last, [1, 8, 4, 4], size=(1, 8, 4, 4))
    shown.meta["val"] = shown.meta["val"].to(memory_format=torch.channels_last)
    graph.backward(shown, image, weight)  # the view lies so already
    assert read_channels_last(graph.graph.nodes) == ({one, two, mixed}, {two, mixed})


class Residual(nn.Module):
    """The end of a U-Net: the gradient of its last block is made in a norm's groups, and two convolutions read it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        end = nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)
        self.blocks = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), Block(width, 2 * width), Block(2 * width, width), *end
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.blocks(x),)


def test_a_plan_writes_such_gradients_once_and_inductor_by_itself_twice():
    facts = capture_module(Residual(), (torch.randn(2, 16, 8, 8, requires_grad=True),)).facts
    twice = {i for i, value in enumerate(facts.values) if value.twice}
    assert twice and twice < {i for i, value in enumerate(facts.values) if value.regrouped}
    stock = Candidates(facts).stock
    ours = Candidates(facts).of(facts.stock_saved)
    assert twice <= {ours.schedule.backward.values[slot] for slot in ours.schedule.backward.settled}
    assert not twice & {stock.schedule.backward.values[slot] for slot in stock.schedule.backward.settled}
    assert ours != stock  # else the plan would pass for Inductor's own choice

    def used(facts):
        found = Candidates(facts).stock
        return dict(zip(found.schedule.backward.values, found.backward.usage, strict=True))

    once = dataclasses.replace(facts, values=tuple(dataclasses.replace(v, twice=False) for v in facts.values))
    counted, alone = used(facts), used(once)
    assert all(counted[i] >= alone[i] + facts.values[i].bytes for i in twice)


def depthwise() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.Conv2d(8, 32, 1), nn.GELU(), nn.Conv2d(32, 8, 1))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 32, 3, padding=1, groups=4), nn.GELU(), nn.Conv2d(32, 8, 3, padding=1))


@pytest.mark.inductor
@pytest.mark.slow
@pytest.mark.parametrize("make, width", [(depthwise, 8), (grouped, 8), (Residual, 16)])
@pytest.mark.parametrize("share", [None, 0.85])
def test_the_sweep_is_what_inductor_allocates(make, width, share):
    torch.manual_seed(0)
    module, x = make(), torch.randn(4, width, 32, 32)

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = module(x)
        return (y[0] if isinstance(y, tuple) else y).square().mean()

    options = {"budget": share, "cache": False}
    swept = memgraph.plan(loss, x, options=options)
    torch.compile(loss, backend="memgraph", options=options)(x).backward()
    read = memgraph.report()
    assert read.source_of_peak == "inductor wrapper"
    lowered = read.predicted_peak - read.baseline
    # 2.11's kernel of the first convolution in a backward takes more scratch, which the sweep does not know (0002).
    least = 0.9 if torch.__version__ < (2, 13) else 0.98
    assert least * lowered <= swept.predicted_peak - swept.baseline <= 1.02 * lowered
