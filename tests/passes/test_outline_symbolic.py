"""Equal layers of a graph whose sizes are symbols: bodies are given the symbols, and one graph serves all lengths."""

from __future__ import annotations

import dataclasses
import operator

import pytest
import torch
from torch import fx, nn

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from memgraph.verify import checks
from tests.passes.test_outline import WIDTH, Model, calls, outlined, step, verify
from tests.passes.test_outline_families import LAYERS, LEFT
from tests.support.graphs import same_bits
from tests.support.lanes import slow_but
from tests.support.models.sized import Shape, make
from tests.support.splits import Split as Captured
from tests.support.splits import capture_inductor

LENGTHS = (5, 2, 3, 17)


def captured(does=("gelu",), layers: int = 8, **rest) -> Captured:
    torch.manual_seed(0)
    return capture_inductor(Model(does, layers, **rest), torch.randn(3, 5, WIDTH), dynamic=True)


def at(found: Captured, length: int) -> Captured:
    """The same graphs, given another length."""
    given = []
    for value, node in zip(found.inputs, found.forward.graph.find_nodes(op="placeholder"), strict=True):
        shape = node.meta["val"].shape if isinstance(value, torch.Tensor) else None
        if shape is None:
            given.append(length if value == 5 else value)
        elif any(not isinstance(size, int) for size in shape):
            given.append(torch.randn(3, length, WIDTH, generator=torch.Generator().manual_seed(length)))
        else:
            given.append(value)
    return dataclasses.replace(found, inputs=tuple(given))


def symbols(gm: fx.GraphModule) -> list[fx.Node]:
    """The inputs of a graph that are sizes."""
    return [n for n in gm.graph.find_nodes(op="placeholder") if isinstance(n.meta["val"], torch.SymInt)]


def told(node: fx.Node) -> str:
    return str(node.meta["val"])


def test_a_body_is_given_the_symbols_of_its_sizes():
    found = captured(("view",))
    after = outlined(found).graphs
    verify(found, after)
    for gm in (after.forward, after.backward):
        for label in {call.args[1] for call in calls(gm)}:
            body = gm.get_submodule(label)
            taken = body.graph.find_nodes(op="placeholder")
            assert taken[: len(symbols(body))] == symbols(body) and len(symbols(body)) == 2
            assert {told(n) for n in symbols(body)} == {told(n) for n in symbols(gm) if compat.symbol_of(n.meta["val"])}
            for call in (one for one in calls(gm) if one.args[1] == label):
                assert [*map(told, call.args[2:4])] == [*map(told, taken[:2])]


def test_sizes_are_computed_again_in_a_body():
    """And the caller computes no size that bodies alone read."""
    found = captured(("view",))
    after = outlined(found).graphs
    body = after.forward.layers_0
    computed = [node for node in body.graph.nodes if node.target is operator.mul]
    assert computed and all(read in symbols(body) for node in computed for read in node.all_input_nodes)
    for node in after.forward.graph.nodes:
        assert node.users or not isinstance(node.meta.get("val"), torch.SymInt) or node.op == "placeholder"


@pytest.mark.parametrize("does", slow_but(["view", "constant", "dropout", "table", "split"], fast=("constant",)))
def test_a_step_is_the_same_to_the_bit_at_all_lengths(does):
    found = captured((does,), states=True)
    after = outlined(found).graphs
    assert calls(after.forward) and calls(after.backward)
    verify(found, after)
    for length in LENGTHS:
        given = at(found, length)
        assert same_bits(step(found.forward, found.backward, given), step(after.forward, after.backward, given))


def test_the_verifier_finds_a_wrong_symbol():
    """Operators of a body are told sizes by their metadata; what a call gives for a symbol is compared by itself."""
    found = captured()
    after = outlined(found).graphs
    verify(found, after)
    call = calls(after.forward)[1]
    one, other, *rest = call.args[2:]
    call.args = (*call.args[:2], other, one, *rest)
    with pytest.raises(VerifyError, match="gives its body layers_0 .* for the size"):
        verify(found, after)


def test_a_graph_that_is_not_given_a_symbol_keeps_its_layers():
    found = captured()
    forward = found.forward
    for node in symbols(forward):
        node.meta["val"] = None
    steps = steps_of(forward)
    assert any("symbols the graph is not given" in step.fixed for step in steps)
    assert not equal_layers(steps).classes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "t5"])
def test_layers_of_a_family(name):
    """With dropout where the model has some: the step is the same to the bit, and as much is left as of plain sizes."""
    shape = Shape(layers=LAYERS.get(name, 8), hidden=64, sequence=64, vocabulary=256, batch=2, dropout=0.1)
    case = make(name, shape)
    found = capture_inductor(case.loss, *case.inputs, dynamic=True)
    layers = [equal_layers(steps_of(gm)) for gm in (found.forward, found.backward)]
    assert sum(one.left for one in layers) <= LEFT[name] * sum(one.operators for one in layers)
    after = outlined(found).graphs
    verify(found, after)
    assert same_bits(step(found.forward, found.backward, found), step(after.forward, after.backward, found))


class Masked(nn.Module):
    """Layers of a value and a mask, whose lengths are captured as two symbols and turn out equal."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(("gelu",), 8)

    def forward(self, mask, x):
        places = torch.arange(mask.shape[1]).unsqueeze(1)  # here the length of the mask is a symbol of its own
        return self.model(x * (mask + places))


def test_of_two_symbols_that_are_equal_a_body_is_given_the_one_that_stands_for_both():
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        found = capture_inductor(Masked(), torch.ones(3, 5, 1), torch.randn(3, 5, WIDTH), dynamic=True)
    sizes = symbols(found.forward)
    assert len({told(node) for node in sizes}) < len(sizes)  # else the test shows nothing
    after = outlined(found).graphs
    verify(found, after)
    for gm in (after.forward, after.backward):
        for call in calls(gm):
            given = [operand for operand in call.args[2:] if operand in symbols(gm)]
            assert given and all(compat.bound_symbol(node.meta["val"]) is not None for node in given)


@pytest.mark.parametrize(("length", "sizes"), [("s9", {"s9"}), ("s7", {"s7", "s9"})], ids=["same", "another"])
def test_a_body_may_be_called_with_other_symbols_that_its_tensors_have_as_well(length, sizes):
    def tensor(rows: str) -> tuple:
        return (rows, 8), (8, 1), torch.float32, torch.device("cpu")

    taken, given = [("SymInt", "s2"), tensor("s2")], [("SymInt", length), tensor("s9")]
    assert checks._symbols(taken, given) == {"s2": sizes}
