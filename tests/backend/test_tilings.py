"""Which combinations of shards are planned, and which are passed over without a plan."""

import pytest
import torch
from torch import nn

from memgraph.backend.joint_graph import SLOWER_IN_A_ROW, Planning
from tests.support.harness import Eager, gradients

WIDTH = 64


class Deep(nn.Module):
    """Blocks of an MLP, which can be tiled, on few tokens."""

    def __init__(self, layers=4):
        super().__init__()
        parts = [
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)
        ]
        self.mlp = nn.ModuleList(parts)

    def forward(self, x):
        for mlp in self.mlp:
            x = x + mlp(torch.tanh(x))
        return x.square().mean()


def searched(monkeypatch, fraction):
    """The plans that were made, and of those passed over what they would have been; with the seconds to beat."""
    original, made, passed = Planning.is_slower, [], []
    best_of = Planning.best_of

    def recorded(self, variant, wanted, seconds):
        found = original(self, variant, wanted, seconds)
        if found:
            passed.append((best_of(self, variant, wanted), seconds))
        return found

    def planned(self, variant, wanted):
        made.append(best_of(self, variant, wanted))
        return made[-1]

    monkeypatch.setattr(Planning, "is_slower", recorded)
    monkeypatch.setattr(Planning, "best_of", planned)
    torch.manual_seed(0)
    backend = Eager(fraction=fraction, tile=True)
    gradients(Deep(), backend, torch.randn(1, 1024, WIDTH))
    (chosen,) = backend.planned
    return made, passed, chosen


def test_what_is_passed_over_could_not_have_been_chosen(monkeypatch):
    made, passed, chosen = searched(monkeypatch, 0.7)
    assert chosen.chosen.peak <= chosen.bound
    assert passed, "a plan without tiles fits, and tiles cost time"
    assert len(passed) <= SLOWER_IN_A_ROW
    for choice, seconds in passed:
        assert not choice.fits or choice.seconds >= seconds
    assert chosen.seconds == min(choice.seconds for choice in made if choice.fits)


@pytest.mark.parametrize("fraction", [0.1, 0.02])
def test_where_nothing_fits_nothing_is_passed_over(monkeypatch, fraction):
    made, passed, chosen = searched(monkeypatch, fraction)
    first = made[0]
    assert not first.fits and all(count == 1 for count in first.variant.cut.shards)
    fits = [choice.fits for choice in made]
    assert not passed or any(fits)
    if not any(fits):
        assert chosen.chosen.peak == min(choice.candidate.peak for choice in made)
