"""Exact plans on the simulated card: what is predicted is requested, and what does not fit is said."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import memgraph
from memgraph.backend.exact import put_on_card
from memgraph.cli.app import app
from tests.simulated.training import EXACT

MIB = 1024**2


class Tied(nn.Module):
    """Layers whose values are worth saving, and a head that shares the weight of its embedding."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                    for _ in range(4))  # fmt: skip
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


@pytest.fixture
def made():
    gc.collect()  # modules of other tests, which would be put on the card as well
    with torch.device("meta"):
        return Tied(), torch.empty(4, 512, dtype=torch.long)


def test_every_phase_is_measured_and_as_predicted(made):
    model, words = made
    found = memgraph.plan(model, words, options={"budget": "40GiB", "cache": False}, optimizer="adamw", exact=True)
    names = ["forward", "backward", "optimizer"]
    assert [(phase.step, phase.name) for phase in found.phases] == [
        (1, "compiling"), *((1, name) for name in names), *((2, name) for name in names)
    ]  # fmt: skip
    second = {phase.name: phase for phase in found.phases if phase.step == 2}
    most = max(second["forward"].requested, second["backward"].requested)
    assert abs(most - found.report.predicted_peak) <= EXACT
    assert found.fits and "fits on" in str(found)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    assert second["optimizer"].allocated >= 4 * parameters  # with gradients and two moments


def test_a_budget_is_kept_with_the_optimizer_s_state(made):
    model, words = made
    free = memgraph.plan(model, words, options={"budget": None, "cache": False}, optimizer="adamw", exact=True)
    budget = max(phase.allocated for phase in free.phases) - 8 * MIB
    torch._dynamo.reset()
    found = memgraph.plan(model, words, options={"budget": budget, "cache": False}, optimizer="adamw", exact=True)
    assert found.fits and found.allocated <= budget < free.allocated


def test_a_full_card_is_said(made):
    model, words = made
    total = torch.cuda.get_device_properties(0).total_memory
    held = torch.empty(total - 600 * MIB - 512 * MIB, dtype=torch.uint8, device="cuda")
    found = memgraph.plan(model, words.repeat(64, 1), options={"budget": None, "cache": False}, exact=True)
    del held
    assert not found.fits and "out of memory" in found.out_of_memory


def test_a_model_that_is_larger_than_the_card_is_said(made):
    """It ends before there is a plan: the report of another one is not shown for it."""
    model, words = made
    assert memgraph.plan(model, words, options={"budget": None, "cache": False}, exact=True).report is not None
    with torch.device("meta"):
        large = nn.Linear(2**20, 2**16)  # 256 GiB
        x = torch.empty(1, 2**20)
    found = memgraph.plan(large, x, options={"budget": None, "cache": False}, exact=True)
    assert not found.fits and "out of memory" in found.out_of_memory and found.report is None


def test_modules_are_put_on_the_card_and_stay_tied(made):
    model, _ = made
    put_on_card()
    assert model.head.weight is model.embedding.weight
    assert all(p.is_cuda and p.requires_grad for p in model.parameters())


SCRIPT = """
import torch
from torch import nn
from typer.testing import CliRunner

def step():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)))
        x = torch.empty(8, 512, 256)
    return (lambda x: model(x).square().mean()), (x,)
"""


@pytest.mark.parametrize("budget, code, said", [("2GiB", 0, "fits on NVIDIA H100"), ("1MiB", 3, "cannot be reached")])
def test_the_command_ends_with_whether_it_fits(tmp_path, budget, code, said):
    file = tmp_path / "exactly.py"
    file.write_text(SCRIPT)
    arguments = ["plan", f"{file}:step", "--exact", "--budget", budget, "--optimizer", "sgd", "--option", "cache=false"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    assert said in done.output
