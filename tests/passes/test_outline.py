"""Equal layers become one body: the graph, its meaning, and that the verifier finds out what is wrong with one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.nn import functional as F

from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.facts.layers import equal_layers
from memgraph.facts.steps import steps_of
from memgraph.passes.graphs import Joint, OutlinePlan, Rewritten, Split
from memgraph.passes.outline import outline
from memgraph.verify.rewrite import verify_partition
from tests.support.graphs import same_bits
from tests.support.lanes import examples
from tests.support.splits import Split as Captured
from tests.support.splits import capture_inductor

INVOKE = torch.ops.higher_order.invoke_subgraph
WIDTH = 8


class Layer(nn.Module):
    """A residual layer of some operations."""

    def __init__(self, does: tuple[str, ...]) -> None:
        super().__init__()
        self.does, self.norm = does, nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.up(self.norm(x))
        for name in self.does:
            y = DOES[name](y)
        return x + self.down(y)


DOES = {
    "gelu": F.gelu,
    "dropout": lambda y: F.dropout(y, 0.5),
    "softmax": lambda y: F.softmax(y, -1),
    "view": lambda y: y.view(-1, 2, WIDTH).transpose(1, 2).reshape(y.shape),
    "split": lambda y: torch.cat(y.chunk(2, -1)[::-1], -1),
    "square": lambda y: y * y,
    "constant": lambda y: y + torch.full((2 * WIDTH,), 0.5),
    "table": lambda y: y * torch.arange(2 * WIDTH),
}


class Model(nn.Module):
    """Layers and a loss; on demand the hidden states of all layers are returned, and one weight serves all of them."""

    def __init__(self, does, layers: int, states: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.layers, self.states = nn.ModuleList(Layer(does) for _ in range(layers)), states
        if tied:
            for layer in self.layers:
                layer.up.weight = self.layers[0].up.weight

    def forward(self, x):
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        loss = x.square().mean()
        return (loss, *found) if self.states else loss


def captured(does=("gelu",), layers: int = 8, **rest) -> Captured:
    torch.manual_seed(0)
    return capture_inductor(Model(does, layers, **rest), torch.randn(4, WIDTH))


def outlined(found: Captured) -> Rewritten[Split]:
    layers = [equal_layers(steps_of(gm)).classes for gm in (found.forward, found.backward)]
    return outline(Split(Joint(found.joint, found.count), found.forward, found.backward), OutlinePlan(*layers))


def verify(found: Captured, split: Split) -> None:
    verify_partition(found.joint, split.forward, split.backward, num_fwd_outputs=found.count, pass_name="outline")


def sizes_of(forward: fx.GraphModule, inputs) -> dict:
    """The values of a graph's symbols for some inputs."""
    taken = zip(forward.graph.find_nodes(op="placeholder"), inputs, strict=True)
    found = {compat.symbol_of(node.meta["val"]): given for node, given in taken}
    return {symbol: given for symbol, given in found.items() if symbol is not None}


def step(forward: fx.GraphModule, backward: fx.GraphModule, found: Captured) -> list[torch.Tensor]:
    torch.manual_seed(1)
    outputs = list(fx.Interpreter(forward).run(*found.inputs))
    saved = outputs[found.count :]
    inputs = backward.graph.find_nodes(op="placeholder")[len(saved) :]
    ordered = sorted(saved, key=lambda value: isinstance(value, torch.Tensor))  # symbols come first
    draw = torch.Generator().manual_seed(2)
    values = sizes_of(forward, found.inputs)
    shapes = ([compat.size_at(size, values) for size in node.meta["val"].shape] for node in inputs)
    tangents = [torch.randn(shape, generator=draw) for shape in shapes]
    return outputs[: found.count] + list(fx.Interpreter(backward).run(*ordered, *tangents))


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return gm.graph.find_nodes(op="call_function", target=INVOKE)


def test_the_forward_calls_one_body_for_each_layer():
    found = captured()
    forward = outlined(found).graphs.forward
    called = calls(forward)
    assert len(called) >= 5
    assert {call.args[1] for call in called} == {"layers_0"}
    body = forward.layers_0
    # What the next layer reads of it and what the backward does, and no more; nothing of it is a view or an input.
    targets = [node.target for node in body.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.addmm.default) == 2
    before = sum(node.target is torch.ops.aten.addmm.default for node in found.forward.graph.nodes)
    outside = sum(node.target is torch.ops.aten.addmm.default for node in forward.graph.nodes)
    assert outside == before - 2 * len(called)


def test_outputs_keep_their_names():
    """What reads a step's wrappers finds saved values by name."""
    found = captured()
    after = outlined(found).graphs
    for old, new in ((found.forward, after.forward), (found.backward, after.backward)):
        names = [[getattr(value, "name", None) for value in gm.graph.output_node().args[0]] for gm in (old, new)]
        assert names[0] == names[1]
        assert [n.name for n in old.graph.find_nodes(op="placeholder")] == [
            n.name for n in new.graph.find_nodes(op="placeholder")
        ]


PROGRAMS = st.lists(st.sampled_from(sorted(DOES)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(8), suppress_health_check=list(HealthCheck), derandomize=True)
@given(PROGRAMS, st.integers(7, 9), st.booleans(), st.booleans())
def test_a_step_is_the_same_to_the_bit(does, layers, states, tied):
    found = captured(tuple(does), layers, states=states, tied=tied)
    rewritten = outlined(found)
    assert rewritten.modified and calls(rewritten.graphs.forward) and calls(rewritten.graphs.backward)
    verify(found, rewritten.graphs)
    after = rewritten.graphs
    assert same_bits(step(found.forward, found.backward, found), step(after.forward, after.backward, found))


def seeds_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The seeds that a graph's bodies are given."""
    drawn = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.select.int)
    return [node for node in drawn if "inductor_seeds" in node.args[0].name]


def test_dropout_is_drawn_from_seeds_that_a_body_is_given():
    found = captured(("dropout",))
    after = outlined(found).graphs
    # Views, which take no kernel; what stands outside of all layers looks its seed up.
    looked_up = [node for node in after.forward.graph.nodes if "lookup_seed" in str(node.target)]
    called = len(calls(after.forward))
    assert [node.args[2] for node in seeds_of(after.forward)] == [*range(1, 1 + called)]
    assert len(looked_up) == 8 - called
    assert all(node.meta["val"].shape == () for node in seeds_of(after.forward))
    drawn = [node for node in after.forward.layers_0.graph.nodes if "inductor_random" in str(node.target)]
    assert len(drawn) == 1 and drawn[0].args[1].op == "placeholder"


def test_the_verifier_finds_a_wrong_seed():
    found = captured(("dropout",))
    after = outlined(found).graphs
    verify(found, after)
    one = seeds_of(after.forward)[1]
    one.args = (*one.args[:2], 0)
    with pytest.raises(VerifyError, match="outline"):
        verify(found, after)


def test_a_body_returns_no_input_and_nothing_twice():
    found = captured(("view", "split"), states=True)
    after = outlined(found).graphs
    verify(found, after)
    for gm in (after.forward, after.backward):
        for label in {call.args[1] for call in calls(gm)}:
            returned = list(gm.get_submodule(label).graph.output_node().args[0])
            assert len(returned) == len(set(returned))
            assert not any(value.op == "placeholder" for value in returned)


def swapped(gm: fx.GraphModule) -> None:
    """The weights of two layers change places."""
    one, other = calls(gm)[1:3]
    weights = [next(a for a in call.args[2:] if a.name.startswith("primals")) for call in (one, other)]
    at = one.args.index(weights[0])
    one.args = (*one.args[:at], weights[1], *one.args[at + 1 :])


def another_operator(gm: fx.GraphModule) -> None:
    node = next(n for n in gm.layers_0.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    node.target = torch.ops.aten.sub.Tensor


def another_layout(gm: fx.GraphModule) -> None:
    node = next(n for n in gm.layers_0.graph.nodes if n.target is torch.ops.aten.addmm.default)
    node.meta["val"] = node.meta["val"].double()


def returns_input(gm: fx.GraphModule) -> None:
    output = gm.layers_0.graph.output_node()
    output.args = ((gm.layers_0.graph.find_nodes(op="placeholder")[0], *output.args[0][1:]),)


def returns_twice(gm: fx.GraphModule) -> None:
    output = gm.layers_0.graph.output_node()
    output.args = ((*output.args[0], output.args[0][0]),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [swapped, another_operator, another_layout, returns_input, returns_twice], ids=lambda f: f.__name__
)
def test_the_verifier_finds_a_wrong_body(broken):
    found = captured()
    after = outlined(found).graphs
    verify(found, after)
    broken(after.forward)
    with pytest.raises(VerifyError, match="outline"):
        verify(found, after)


def test_a_plan_without_layers_changes_nothing():
    found = captured(layers=2)
    split = Split(Joint(found.joint, found.count), found.forward, found.backward)
    rewritten = outline(split, OutlinePlan())
    assert not rewritten.modified and rewritten.graphs is split


def test_what_is_given_is_left_as_it_was():
    found = captured()
    before = [str(node.format_node()) for node in found.forward.graph.nodes]
    outlined(found)
    assert before == [str(node.format_node()) for node in found.forward.graph.nodes]
