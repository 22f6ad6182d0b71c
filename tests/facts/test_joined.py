"""What `cat` joins is written to memory on the CPU, and nothing takes its place there."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import memgraph
from memgraph.facts.joined import is_joined, is_joined_by_torch
from memgraph.facts.values import kind_of
from memgraph.planner.candidates import Candidates
from tests.support.graphs import capture_module

ATEN = torch.ops.aten
ROW, NOTHING = torch.zeros(4, 8), torch.zeros(0)


def joined(*parts: torch.Tensor, device: str = "cpu") -> fx.Node:
    """A node that joins tensors of some device."""
    graph = fx.Graph()
    nodes = []
    for n, part in enumerate(parts):
        nodes.append(graph.placeholder(f"x{n}"))
        nodes[-1].meta["val"] = part.to(device)
    node = graph.call_function(ATEN.cat.default, (nodes, -1))
    node.meta["val"] = torch.cat([part.to(device) for part in parts], -1)
    return node


@pytest.mark.parametrize(
    ("parts", "device", "kind"),
    [
        ((ROW, ROW), "cpu", "reduction"),
        ((ROW,), "cpu", "pointwise"),  # a copy
        ((NOTHING, ROW), "cpu", "pointwise"),  # a cache without keys yet
        ((NOTHING, ROW, ROW), "cpu", "reduction"),
        ((ROW.to(torch.uint8), ROW.to(torch.uint8)), "cpu", "extern"),
        ((ROW.to(torch.uint8), ROW), "cpu", "reduction"),
        ((ROW, ROW), "meta", "pointwise"),  # as on a GPU
    ],
)
def test_what_is_written(parts, device, kind):
    node = joined(*parts, device=device)
    assert kind_of(node, node.meta["val"], tangent=False) == kind
    assert (is_joined(node), is_joined_by_torch(node)) == (kind != "pointwise", kind == "extern")


class Widened(nn.Module):
    """A layer whose rows are scaled by something four times as wide, which the backward does not need."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = self.first(x)
        kept = y.detach()
        wide = torch.cat([kept, 2 * kept, kept + 1, kept - 1], -1)
        return (self.last(y * torch.exp(wide).sum(-1, keepdim=True)),)


class Rooted(nn.Module):
    """What reads a joined tensor is as large, and the last to read it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = x @ x.T
        return (torch.sqrt(torch.cat([y[:64], y[64:] + 1])) @ x,)


def test_nothing_takes_the_place_of_a_joined_tensor():
    facts = capture_module(Rooted(), (torch.rand(128, 8, requires_grad=True),)).facts
    names = [value.name for value in facts.values]
    stock = Candidates(facts).stock
    held = stock.schedule.forward.values
    replaced = {names[held[taken]] for taken in stock.forward.in_place.values()}
    assert "cat" in {names[held[slot]] for slot in stock.forward.births} and "cat" not in replaced


@pytest.mark.inductor
def test_no_less_is_allocated_than_the_sweep_says():
    torch.manual_seed(0)
    block, x = Widened(), torch.randn(512, 64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return block(x)[0].square().mean()

    swept = memgraph.plan(loss, x, options={"budget": None})
    torch.compile(loss, backend="memgraph", options={"budget": None, "cache": False})(x).backward()
    read = memgraph.report()
    assert read.source_of_peak == "inductor wrapper"
    assert read.predicted_peak - read.baseline == pytest.approx(swept.predicted_peak - swept.baseline, abs=4)
    assert swept.predicted_peak - swept.baseline >= 5 * x.nbytes  # the product, and what is four times as wide
