"""Equal layers of models of many families become bodies, and a step is the same to the bit, dropout included."""

from __future__ import annotations

import pytest

from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from tests.passes.test_outline import outlined, step, verify
from tests.support.graphs import same_bits
from tests.support.lanes import slow_but
from tests.support.models.sized import Shape, make
from tests.support.splits import capture_inductor

# The share of the operators of a forward and its backward that is left to compile, at most, of 8 layers, or fewer.
LEFT = {"llama": 0.45, "gemma3": 0.6, "gpt2": 0.4, "vit": 0.4, "t5": 0.6}
LAYERS = {"t5": 4}  # of the encoder, and as many of the decoder


@pytest.mark.parametrize("name", slow_but(LEFT, fast=()))
def test_layers_of_a_family(name):
    shape = Shape(layers=LAYERS.get(name, 8), hidden=64, sequence=64, vocabulary=256, batch=2, dropout=0.1)
    case = make(name, shape)
    found = capture_inductor(case.loss, *case.inputs)
    layers = [equal_layers(steps_of(gm)) for gm in (found.forward, found.backward)]
    assert sum(one.left for one in layers) <= LEFT[name] * sum(one.operators for one in layers)
    after = outlined(found).graphs
    verify(found, after)
    assert same_bits(step(found.forward, found.backward, found), step(after.forward, after.backward, found))
