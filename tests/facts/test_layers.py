"""Equal layers are found in any order of operators, and what is different stays outside with its reason."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from memgraph.facts.layers import LEAST, SMALLEST, Layers, equal_layers
from memgraph.facts.steps import Step, steps_of
from tests.support.lanes import examples
from tests.support.splits import capture, capture_inductor

KINDS = 40
"""Operators of random graphs; above are those that mark a layer."""


@st.composite
def blocks(draw) -> list[tuple[int, tuple[int, ...]]]:
    """The operators of a layer: what each does, and which earlier ones it reads, 0 for the newest."""
    length = draw(st.integers(SMALLEST + 1, 24))
    does = draw(st.lists(st.integers(0, KINDS - 1), min_size=length, max_size=length))
    does[draw(st.integers(0, length - 1))] = KINDS
    reads = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=length, max_size=length))
    return list(zip(does, map(tuple, reads), strict=True))


def program(parts: list[list[tuple[int, tuple[int, ...]]]]) -> list[Step]:
    """The steps of some stretches, one after another."""
    steps: list[Step] = []
    for does, reads in itertools.chain.from_iterable(parts):
        places = tuple(max(-1, len(steps) - 1 - back) for back in reads)
        steps.append(Step(f"s{len(steps)}", does, places))
    return [*steps, Step("end", KINDS + 2, tuple(range(len(steps) - min(3, len(steps)), len(steps))))]


def heads(low: int):
    kinds = st.integers(low, low + KINDS)
    return st.lists(st.tuples(kinds, st.just((0,))), max_size=15)


@settings(deadline=None, max_examples=examples(150))
@given(blocks(), st.integers(LEAST + 5, 12), heads(100), heads(200))
def test_repeated_blocks_are_found(block, times, head, tail):
    found = equal_layers(program([head, *[block] * times, tail]))
    # The first and the last may read or be read in another way, and layers need not end where blocks do.
    assert found.left <= len(head) + len(tail) + 1 + 5 * len(block)
    assert_equal(program([head, *[block] * times, tail]), found)


@settings(deadline=None, max_examples=examples(150))
@given(blocks(), st.integers(LEAST + 3, 8), st.data())
def test_a_block_with_another_operator_stays_outside(block, times, data):
    which, where = data.draw(st.integers(1, times - 1)), data.draw(st.integers(0, len(block) - 1))
    assume(block[where][0] != KINDS)
    other = [*block[:where], (KINDS + 1, block[where][1]), *block[where + 1 :]]
    steps = program([block if n != which else other for n in range(times)])
    found = equal_layers(steps)
    assert_equal(steps, found)
    changed = steps[which * len(block) + where].name
    assert changed not in names_in(found)
    assert found.classes, "the others are found"
    place = {step.name: n for n, step in enumerate(steps)}
    mine = [one for one in found.alone if place[one.first] <= place[changed] <= place[one.last]]
    assert mine and all(one.reason for one in mine)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=2)), max_size=120), st.data())
def test_whatever_is_found_is_equal(operators, data):
    steps = program([[(does, tuple(reads)) for does, reads in operators]])
    fixed = data.draw(st.sets(st.integers(0, len(steps)), max_size=2))
    steps = [dataclasses.replace(one, fixed="prints") if n in fixed else one for n, one in enumerate(steps)]
    found = equal_layers(steps)
    assert_equal(steps, found)
    assert not {steps[n].name for n in fixed if n < len(steps)} & names_in(found)


def names_in(found: Layers) -> set[str]:
    return {name for layers in found.classes for layer in layers for name in layer}


def assert_equal(steps: list[Step], found: Layers) -> None:
    """Compares all pairs of layers of a class, operator by operator: the oracle."""
    place = {step.name: n for n, step in enumerate(steps)}
    readers: dict[int, set[int]] = {}
    for n, step in enumerate(steps):
        for read in step.reads:
            readers.setdefault(read, set()).add(n)
    taken = [place[name] for layers in found.classes for layer in layers for name in layer]
    assert len(taken) == len(set(taken))
    for layers in found.classes:
        assert len(layers) >= LEAST
        for one, other in itertools.combinations([[place[name] for name in layer] for layer in layers], 2):
            assert one == list(range(one[0], one[0] + len(one))), "a layer is a stretch"
            given: dict[int, int] = {}
            for mine, twin in zip(one, other, strict=True):
                assert steps[mine].does == steps[twin].does
                for read, theirs in zip(steps[mine].reads, steps[twin].reads, strict=True):
                    inside = read in one
                    assert inside == (theirs in other)
                    if inside:
                        assert one.index(read) == other.index(theirs)
                    else:
                        assert given.setdefault(read, theirs) == theirs
                assert bool(readers.get(mine, set()) - set(one)) == bool(readers.get(twin, set()) - set(other))


class Layer(nn.Module):
    def __init__(self, width: int = 8, rate: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.rate = rate

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.rate)


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()


def found_in(layers: list[nn.Module]) -> tuple[Layers, Layers]:
    split = capture_inductor(Stack(layers), torch.randn(4, 8))
    return equal_layers(steps_of(split.forward)), equal_layers(steps_of(split.backward))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_layers_of_a_model_are_one_class_forward_and_backward(rate):
    for found in found_in([Layer(rate=rate) for _ in range(10)]):
        assert found.count >= 6
        assert found.left < 0.6 * found.operators


def test_a_layer_that_does_something_else_stays_outside():
    class Other(Layer):
        def forward(self, x):
            return x + self.down(torch.tanh(self.up(self.norm(x))))

    forward, _ = found_in([Layer() if n != 5 else Other() for n in range(11)])
    assert forward.count >= 6
    assert not any("tanh" in name for name in names_in(forward))
    assert any("tanh" in one.reason for one in forward.alone)


@pytest.mark.slow
def test_layers_of_two_kinds_that_take_turns_are_two_classes():
    class Other(Layer):
        def forward(self, x):
            return x + self.down(torch.tanh(self.up(self.norm(x))))

    forward, backward = found_in([Other() if n % 3 == 2 else Layer() for n in range(15)])
    assert len(forward.classes) >= 2 and forward.left < forward.operators / 2
    assert len(backward.classes) >= 2


def test_a_layer_of_another_width_says_so():
    class Wide(Layer):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    forward, _ = found_in([Layer() if n != 3 else Wide() for n in range(8)])
    assert any("24" in one.reason for one in forward.alone)


def test_an_operator_that_may_be_in_no_body_is_told():
    block = [(n, (0,)) for n in range(SMALLEST + 2)]
    steps = program([block] * 8)
    steps[4 * len(block) + 3] = dataclasses.replace(steps[4 * len(block) + 3], fixed="draws random numbers")
    found = equal_layers(steps)
    assert found.count >= 5
    assert any("draws random numbers" in one.reason for one in found.alone)


def test_several_values_are_taken_apart_where_they_are_made():
    block = [(n, (0,)) for n in range(SMALLEST + 2)]
    steps = program([block] * 8)
    for start in range(0, 8 * len(block), len(block)):
        steps[start + 5] = dataclasses.replace(steps[start + 5], several=True)
        steps[start + 6] = dataclasses.replace(steps[start + 6], part=True)
    found = equal_layers(steps)
    assert found.count >= 6
    for layer in itertools.chain.from_iterable(found.classes):
        assert int(layer[0][1:]) % len(block) != 6


def test_thirty_thousand_operators_take_a_second():
    block = [(n % 90, (0, n % 6)) for n in range(250)]
    steps = program([block] * 120)
    start = time.thread_time()
    assert equal_layers(steps).count >= 110
    assert time.thread_time() - start < 4  # 0.5 s alone


@pytest.mark.slow
def test_sizes_that_data_decide_are_in_no_body():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(8))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x[x.sum(-1) > 0])
            return x.sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        split = capture(Routed(), torch.randn(4, 8))
    steps = steps_of(split.forward)
    assert any("sizes that are not known yet" in step.fixed for step in steps)
    assert not equal_layers(steps).classes
