"""Outputs that the caller drops before the backward: seen without being held, and not in the next plan."""

import gc

import pytest
import torch
from torch import nn

import memgraph
from memgraph.base.errors import PlanWarning
from memgraph.step.returned import Returned
from tests.support.interpreted import backend

TOKENS, WIDTH, VOCABULARY, LAYERS = 512, 64, 512, 4


class Model(nn.Module):
    """It returns its logits beside the loss."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x, labels):
        for _ in range(LAYERS):
            x = x + self.down(nn.functional.gelu(self.up(x)))
        logits = self.head(x)
        return nn.functional.cross_entropy(logits, labels), logits


def test_a_view_holds_an_output_and_nothing_else_does():
    outputs = [torch.ones(100) for _ in range(2)] + [torch.ones(1), 7]
    seen = Returned(outputs, smallest=100)
    assert seen.dropped() == ()
    view = outputs[1][:2]
    del outputs
    assert seen.dropped() == (0,)
    del view
    assert seen.dropped() == (0, 1)


def test_one_of_two_outputs_in_a_storage_holds_it():
    whole = torch.ones(100)
    outputs = [whole, whole.view(10, 10)]
    del whole
    seen = Returned(outputs, smallest=1)
    del outputs[0]
    assert seen.dropped() == ()
    del outputs[0]
    assert seen.dropped() == (0, 1)


def test_what_autograd_saves_is_no_holder_of_the_users():
    x = torch.ones(100, requires_grad=True)
    y = x.exp()  # saved for its own backward
    seen = Returned([y], smallest=1)
    loss = y.sum()
    del y
    assert seen.dropped() == (0,)
    loss.backward()


@pytest.fixture
def training():
    """(step, its graph's reports): a step under a budget that the logits leave no room for until they are dropped."""
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    model, x, labels = Model(), torch.randn(TOKENS, WIDTH), torch.randint(0, VOCABULARY, (TOKENS,))
    baseline = memgraph.measure_peak(lambda: None)
    known = len(memgraph.reports())
    compiled = torch.compile(model, backend=backend(budget=baseline + int(5.75 * 2**20)))

    def step(held):
        loss, logits = compiled(x, labels)
        logits = logits if held else None
        loss.backward()
        model.zero_grad()
        return loss.item()

    yield step, lambda: memgraph.reports()[known:]


@pytest.mark.slow
def test_the_next_plan_does_not_hold_what_is_dropped(training):
    step, reports = training
    losses = []
    peaks = [memgraph.measure_peak(lambda: losses.append(step(held=False))) for _ in range(3)]
    first, second = reports()
    assert second.predicted_time < first.predicted_time
    assert any("drops them" in note for note in second.notes)
    assert max(peaks) <= first.budget and peaks[2] == pytest.approx(second.predicted_peak, rel=0.01)
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.slow
def test_what_is_held_after_all_is_told_and_counted_again(training):
    step, reports = training
    for _ in range(2):
        step(held=False)
    step(held=True)
    with pytest.warns(PlanWarning, match="had dropped them"):
        peak = memgraph.measure_peak(lambda: step(held=True))
    assert peak <= reports()[0].budget
    step(held=False)
    assert memgraph.measure_peak(lambda: step(held=True)) <= reports()[0].budget


@pytest.mark.slow
def test_what_is_held_in_each_step_stays_in_the_plan(training):
    step, reports = training
    for _ in range(3):
        step(held=True)
    assert len(reports()) == 1
