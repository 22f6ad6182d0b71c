"""An output takes the place of an input only where its kernel reads the entry that it writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memgraph
from memgraph.facts import bodies
from memgraph.facts.operators import aten_names
from memgraph.planner.candidates import Candidates
from tests.support.graphs import capture_module


class Gated(nn.Module):
    """The gradients of both halves are put together into a tensor as large as what was split, which dies there."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 8 * size, bias=False), nn.Linear(4 * size, size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        gate, up = self.up(x).chunk(2, -1)
        return (self.down(nn.functional.silu(gate) * up),)


class Flipped(nn.Module):
    """A fused chain reads a product at the entry that it writes and at another one."""

    def __init__(self, flipped: bool, size: int = 8) -> None:
        super().__init__()
        self.flipped = flipped
        self.first, self.last = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = self.first(x)
        return (self.last(y + torch.flip(y, [-1]) if self.flipped else y + 1),)


class Padded(nn.Module):
    """A fused chain pads a product and cuts as much off, as attention with sinks does with its scores."""

    def __init__(self, before: int, after: int, size: int = 8) -> None:
        super().__init__()
        self.pad, self.size = (before, after), size
        self.first, self.last = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.last(torch.exp(nn.functional.pad(self.first(x), self.pad) + 1)[:, : self.size]),)


def in_place(module: nn.Module) -> list[tuple[str, str]]:
    """The outputs that take the place of another value in the forward or the backward, by Inductor's own choice."""
    facts = capture_module(module, (torch.randn(128, 8),)).facts
    stock = Candidates(facts).stock
    sides = ((stock.schedule.forward, stock.forward), (stock.schedule.backward, stock.backward))
    return [
        (facts.values[program.values[slot]].name, facts.values[program.values[taken]].name)
        for program, sweep in sides
        for slot, taken in sweep.in_place.items()
    ]


def test_parts_that_are_put_together_are_not_written_over_what_they_are_made_of():
    assert in_place(Gated()) == []


@pytest.mark.parametrize("flipped", [False, True])
def test_what_is_read_at_another_place_is_read_to_its_end(flipped):
    assert in_place(Flipped(flipped)) == ([] if flipped else [("add", "mm")])


def test_what_is_padded_and_cut_back_is_read_where_it_is_written():
    assert in_place(Padded(0, 1)) == [("constant_pad_nd_1", "mm_3")]


def test_what_is_padded_at_its_start_is_shifted():
    assert in_place(Padded(1, 0)) == []


class Transposed(nn.Module):
    """A product is laid out anew, as attention does with heads and tokens; or it is only copied."""

    def __init__(self, transposed: bool, size: int = 8) -> None:
        super().__init__()
        self.transposed, self.size = transposed, size
        self.first, self.last = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        rows = self.first(x).view(-1, 16, self.size)
        rows = 2 * (rows.transpose(0, 1) if self.transposed else rows)
        return (self.last(rows.reshape(-1, self.size)),)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_lies_in_another_order_is_read_at_another_place(transposed):
    assert in_place(Transposed(transposed)) == ([] if transposed else [("mul", "mm"), ("mul_1", "mm_3")])


class Scored(nn.Module):
    """A loss picks an entry of each row; the backward reads the softmax of all, of which it is the last to read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 256))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (nn.functional.cross_entropy(x @ self.weight, torch.arange(128)),)


@pytest.mark.parametrize("heavy", ["exp sigmoid", "exp log sigmoid"])
def test_a_softmax_waits_for_what_a_loss_picks_of_the_logits_where_logarithms_are_written(heavy, monkeypatch):
    monkeypatch.setattr(bodies, "heavy_names", lambda: aten_names(heavy))
    facts = capture_module(Scored(), (torch.randn(128, 8),)).facts
    softmax = [i for i, value in enumerate(facts.values) if value.label.operator == "aten::exp"][-1]
    found = Candidates(facts).of(facts.stock_saved | {softmax})
    replacing = {found.schedule.forward.values[slot] for slot in found.forward.in_place}
    assert (softmax in replacing) == ("log" in heavy)


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("block", "loss_itself"),
    [
        (lambda: Gated(64), 0),
        (lambda: Padded(0, 1, 64), 4),
        (lambda: Padded(1, 0, 64), 4),
        (lambda: Transposed(True, 64), 4),
        (lambda: Flipped(True, 64), 4),
    ],
)
def test_no_more_is_allocated_than_the_sweep_says(block, loss_itself):
    torch.manual_seed(0)
    blocks, x = [block() for _ in range(3)], torch.randn(512, 64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = x + block(x)[0]
        return x.square().mean()

    swept = memgraph.plan(loss, x, options={"budget": None})
    torch.compile(loss, backend="memgraph", options={"budget": None, "cache": False})(x).backward()
    read = memgraph.report()
    assert read.source_of_peak == "inductor wrapper"
    assert read.predicted_peak - read.baseline <= swept.predicted_peak - swept.baseline + loss_itself
