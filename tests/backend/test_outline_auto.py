"""Option "outline" as it is by default: many equal layers become bodies where the budget has room for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import memgraph
from memgraph.machine.measure import allocated_bytes
from memgraph.planner import outlining
from tests.support.interpreted import backend

ROOT = Path(__file__).parents[2]
LAYERS, WIDTH = 40, 32
FEWER = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.left, self.right = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        return x + nn.functional.dropout(torch.tanh(self.left(y)) * self.right(y).sigmoid(), 0.1)


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model(LAYERS)


def trained(model: nn.Module, **options):
    """One step; the report, and the gradients."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    torch.compile(model, backend=backend(**options))(torch.randn(4, 64, WIDTH)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return memgraph.report(), gradients


def outlined(report) -> bool:
    return any(note.startswith("outlined: ") for note in report.notes)


@pytest.fixture(scope="module")
def unplanned(model):
    """A step without a budget and without bodies."""
    return trained(model, budget=None, outline=False)


def test_many_equal_layers_become_bodies(model, unplanned):
    """To the bit the same gradients, dropout on; the report says what became of the layers, and no refusal is made."""
    report, gradients = trained(model, budget=None)
    assert outlined(report) and not outlined(unplanned[0])
    assert not [refusal for refusal in report.refusals if refusal.what.startswith("outline")]
    assert all(map(torch.equal, gradients, unplanned[1]))


def test_few_equal_layers_stay_as_they_are():
    """Layers are planned one by one then, too: the report is the one without the option."""
    few = Model(6)
    default, without = (trained(few, budget=0.6, **options)[0] for options in ({}, {"outline": False}))
    assert not outlined(default)
    assert default.decisions == without.decisions


@pytest.fixture
def fewer(monkeypatch):
    """Layers that become bodies by themselves, though they save less: a plan of fewer takes less time."""
    monkeypatch.setattr(outlining, "LEAST_SAVED", outlining.LEAST_SAVED // 10)
    monkeypatch.setattr(outlining, "WORTH", outlining.WORTH / 10)
    torch.manual_seed(0)
    return Model(FEWER)


@pytest.mark.slow
def test_bodies_cost_nobody_a_budget(fewer):
    """What a refusal names is what it names without bodies, and it is kept."""
    model, reached = fewer, {}
    above = trained(model, budget=None, outline=False)[0].above
    assert outlined(trained(model, budget=None)[0])
    for outline in ("auto", False):
        with pytest.raises(memgraph.BudgetError) as refused:
            trained(model, budget=allocated_bytes("cpu") + above // 30, outline=outline)
        reached[outline] = above // 30 + refused.value.minimum - refused.value.budget
    del refused  # its traceback holds tensors
    # What the step before has left (its batch, the state of the generator) is freed while this one is compiled.
    assert reached["auto"] == pytest.approx(reached[False], abs=65536)
    report, _ = trained(model, budget=allocated_bytes("cpu") + reached["auto"] + 65536)
    assert report.predicted_peak <= report.budget


@pytest.mark.slow
def test_a_plan_file_says_what_became_of_the_layers(fewer, tmp_path):
    """By the plan the layers become bodies again, or stay as they are."""
    model = fewer
    for number, options in enumerate(({}, {"outline": False})):
        report, gradients = trained(model, budget=0.7, **options)
        report.plan.save(tmp_path / f"{number}.json")
        again, same = trained(model, plan=str(tmp_path / f"{number}.json"))
        assert outlined(again) == outlined(report) == (not options)
        assert all(map(torch.equal, gradients, same))


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_pages_say_from_where_on_it_pays(page):
    assert f"{outlining.LEAST_SAVED:,}" in (ROOT / page).read_text()
