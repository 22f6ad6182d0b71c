"""The copies of convolutions' inputs and weights that Inductor makes in another layout, and saves."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import memgraph
from memgraph.planner.candidates import Candidates
from tests.support.graphs import capture_module

LAST = torch.channels_last


class Convolved(nn.Module):
    """Two convolutions of 3 x 3 entries, one of a single entry, and one along a line."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.point, self.line = nn.Conv2d(8, 8, 1), nn.Conv1d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.line(self.point(self.second(self.first(x).relu()).relu()).flatten(2)),)


def image(requires_grad: bool = False) -> torch.Tensor:
    return torch.randn(2, 8, 12, 12, requires_grad=requires_grad)


def sizes(module: nn.Module, x: torch.Tensor) -> list[int]:
    facts = capture_module(module, (x,)).facts
    return sorted(facts.values[i].bytes for i in facts.copied)


def test_weights_and_images_are_copied_whose_channels_do_not_come_last():
    block, x = Convolved(), image()
    assert sizes(block, x) == sorted(t.nbytes for t in (x, block.first.weight, block.second.weight))
    assert sizes(block, x.to(memory_format=LAST)) == sorted(t.nbytes for t in (block.first.weight, block.second.weight))
    assert sizes(block.to(memory_format=LAST), x.to(memory_format=LAST)) == []


def test_nothing_is_copied_where_inductor_does_not_change_the_layout():
    with torch._inductor.config.patch(layout_optimization=False):
        assert sizes(Convolved(), image()) == []


def test_copies_stand_from_the_start_until_the_backward_has_read_them():
    facts = capture_module(Convolved(), (image(),)).facts
    with_copies, without = (
        Candidates(dataclasses.replace(facts, copied=copied)).stock for copied in (facts.copied, frozenset())
    )
    copied = sum(facts.values[i].bytes for i in facts.copied)
    program = with_copies.schedule.forward
    assert with_copies.carried - without.carried == copied
    inputs, length = program.inputs, len(program.values)
    assert {with_copies.forward.usage[s] - without.forward.usage[s] for s in range(inputs, length)} == {copied}
    more = [a - b for a, b in zip(with_copies.backward.usage, without.backward.usage, strict=True)]
    assert more == sorted(more, reverse=True) and more[0] == 0
    assert more[-1] >= -copied  # what the last operator reads stands while it runs


def test_the_interpreter_copies_nothing():
    facts = capture_module(Convolved(), (image(),)).facts
    assert facts.copied and not Candidates(facts, fused=False).facts.copied


@pytest.mark.inductor
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_the_sweep_leaves_for_the_backward_what_inductor_leaves(layout):
    torch.manual_seed(0)
    block, x = Convolved().to(memory_format=layout), image().to(memory_format=layout)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return block(x)[0].square().mean()

    def left(report: memgraph.Report) -> int:
        return sum(event.bytes for event in report.timeline.events if event.phase == "forward")

    swept = memgraph.plan(loss, x, options={"budget": None})
    torch.compile(loss, backend="memgraph", options={"budget": None, "cache": False})(x).backward()
    read = memgraph.report()
    assert read.source_of_peak == "inductor wrapper"
    assert left(read) == left(swept)
