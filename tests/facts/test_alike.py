"""Equal layers of a joint graph's forward, as values."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from memgraph.facts.alike import with_alike_layers
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from tests.support.graphs import capture_module


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = self.up(x)
        return x + self.down((y.sigmoid() * y).sin().cos().tanh().exp().neg() * y)


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return (self.layers(x).sum(),)


def test_values_of_equal_layers_correspond():
    torch.manual_seed(0)
    found = capture_module(Net(*(Layer() for _ in range(6))), (torch.randn(4, 8),))
    facts = with_alike_layers(found.facts, equal_layers(steps_of(found.joint)))
    assert dataclasses.replace(facts, alike=()) == found.facts
    assert facts.alike and all(len(layers) >= 3 for layers in facts.alike)
    forward = set(facts.forward)
    for layers in facts.alike:
        for values in zip(*layers, strict=True):
            assert forward.issuperset(values) and len(set(values)) == len(layers)
            alike = {
                (v.kind, v.bytes, v.seconds, v.label.operator, v.label.shape)
                for v in map(facts.values.__getitem__, values)
            }
            assert len(alike) == 1


def test_a_graph_without_equal_layers_has_none():
    found = capture_module(Net(nn.Linear(8, 8), nn.Tanh()), (torch.randn(4, 8),))
    assert with_alike_layers(found.facts, equal_layers(steps_of(found.joint))).alike == ()
