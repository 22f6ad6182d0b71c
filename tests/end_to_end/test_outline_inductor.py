"""Equal layers as one body, through Inductor: what a body overwrites is its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import memgraph

WIDTH, TOKENS = 32, 64


class Gated(nn.Module):
    """A residual layer whose backward makes two gradients of the products that it saved, and could write into those."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self, states: bool) -> None:
        super().__init__()
        self.layers, self.states = nn.ModuleList(Gated() for _ in range(5)), states

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        states = []
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        return (x.square().mean(), *(states if self.states else ()))


def step(outline: bool, states: bool) -> tuple[memgraph.Report, list[list[Tensor]]]:
    """What the report says, and all gradients of two steps, of which the second finds what the first left."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, found = Model(states), []
    compiled = torch.compile(model, backend="memgraph", options={"budget": None, "outline": outline, "cache": False})
    for seed in range(2):
        x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        compiled(x)[0].backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    return memgraph.report(), found


def written_over(report: memgraph.Report) -> int:
    """How many storages of saved values come to hold a gradient."""
    reuses = report.timeline.reuses
    return sum(reuse.phase == "backward" and reuse.storage.startswith("forward.") for reuse in reuses)


@pytest.mark.inductor
@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
def test_a_body_writes_into_saved_values_as_its_layers_do(states):
    (plain, expected), (bodies, found) = step(False, states), step(True, states)
    assert any("outlined: " in note for note in bodies.notes)
    for ones, others in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
    assert written_over(bodies) >= written_over(plain) >= len(Model(states).layers)


def gradients(outline: bool, lengths: tuple[int, ...]) -> tuple[memgraph.Report, list[list[Tensor]]]:
    """What the report says, and all gradients of a step for each length; one graph serves all of them."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, found = Model(states=False), []
    options = {"budget": "64MiB", "outline": outline, "cache": False}
    compiled = torch.compile(model, backend="memgraph", options=options, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in lengths:
            model.zero_grad()
            x = torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(length))
            compiled(x)[0].backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
    return memgraph.report(), found


@pytest.mark.inductor
def test_bodies_serve_all_lengths():
    lengths = (TOKENS, 7, 100)  # from 129 on Inductor would sum in another way, and compile again
    (plain, expected), (bodies, found) = gradients(False, lengths), gradients(True, lengths)
    assert any("outlined: " in note for note in bodies.notes)
    assert not any("outlined: " in note for note in plain.notes)
    assert bodies.as_predicted and bodies.measured_peak is not None
    for ones, others in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
