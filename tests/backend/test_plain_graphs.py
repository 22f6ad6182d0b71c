"""Graphs with a part that few have: assertions, tokens of effects, replayed generators, ragged sizes, no work."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import memgraph
from memgraph.facts.actions import Save
from memgraph.lower.timeline import Input, inputs_of, output_names, read_wrapper, saved_by_name, without_work
from memgraph.lower.wrapper import NotReadable
from tests.support.harness import Eager, assert_bitwise, gradients

# --- planned and run by FX alone ----------------------------------------------------------------------------


class Codebook(nn.Module):
    """`F.one_hot` asserts that its index is in range; the index is saved, so the backward could assert it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.codes = nn.Parameter(torch.randn(16, 32))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        index = torch.cdist(x, self.codes.detach()).argmin(1)
        h = x + self.codes[index] + F.one_hot(index, 32).float() * x
        for layer in self.layers:
            h = h + layer(h)
        return h.pow(2).mean()


@pytest.mark.parametrize("bound", [pytest.param({"fraction": 0.7}, marks=pytest.mark.slow), {"last": True}])
def test_an_assertion_stays_in_the_forward(bound):
    torch.manual_seed(0)
    module, x = Codebook(), torch.randn(128, 32)
    planner = Eager(**bound)
    assert_bitwise(gradients(module, planner, x), gradients(module, Eager(fraction=1.0), x))
    (planned,) = planner.planned
    assert not planned.plan.stock
    assert not any("assert" in step.name for step in planned.plan.backward)


class Checkpointed(nn.Module):
    """Under a checkpoint Inductor's split draws dropout again, from a saved state of the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.3)) for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x.pow(2).mean()


@pytest.mark.parametrize("bound", [{"fraction": 1.0}, {"last": True}])
def test_dropout_under_a_checkpoint_is_the_forwards(bound):
    torch.manual_seed(0)
    module, x = Checkpointed(), torch.randn(128, 32)
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = module(x)
    loss.backward()
    want = [loss.detach(), *(parameter.grad.clone() for parameter in module.parameters())]
    planner = Eager(**bound, inductor={"fallback_random": True})
    for mine, theirs in zip(gradients(module, planner, x), want, strict=True):
        torch.testing.assert_close(mine, theirs)
    (planned,) = planner.planned
    kept = [decision for decision in planned.plan.decisions if decision.why == "draws random numbers"]
    assert len(kept) >= 3 and all(isinstance(decision.action, Save) for decision in kept)


# --- what Inductor makes of them ----------------------------------------------------------------------------


def traced(fn, *args):
    graph = torch.fx.symbolic_trace(fn)
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), args, strict=True):
        node.meta["val"] = value
    return graph


def test_a_graph_without_work_is_read_as_it_is():
    gm = traced(lambda x, y, n: (y, None, x, 3), torch.ones(4), torch.ones(2), 7)
    given = inputs_of(gm)
    lowered = read_wrapper(without_work(gm), given, "forward")
    assert not lowered.events
    assert [output.input for output in lowered.outputs] == ["y", None, "x", None]
    assert output_names(gm) == ("y", "", "x", "")
    assert without_work(traced(lambda x: (x + 1,), torch.ones(1))) is None


def test_saved_values_with_other_names_are_found_by_their_place():
    """Generators' states: the forward returns getitem_10, which the backward takes as rng_state_output_0."""
    given = [Input(name, 4, name) for name in ("primals_1", "mm", "rng_state_output_0", "tangents_1")]
    assert saved_by_name(("loss", "primals_1", "mm", "getitem_10"), given) == {0: 1, 1: 2, 2: 3}
    assert saved_by_name(("loss", "primals_1", "mm"), given) == {0: 1, 1: 2}


def test_what_is_not_python_cannot_be_read():
    with pytest.raises(NotReadable, match="not Python"):
        read_wrapper("#include <torch/csrc>\nint main() { return 0; }", (), "forward")


X = torch.randn(4, 16, 16)
W = nn.Parameter(torch.randn(16, 16) / 4 + 4 * torch.eye(16))


@torch.library.custom_op("memgraph_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(tuple(x.shape))
    return x.clone()


noted.register_fake(torch.empty_like)
noted.register_autograd(lambda ctx, gradient: gradient)
NOTES: list[tuple[int, ...]] = []


def one_token(x):
    return torch.linalg.inv(x @ W) @ x


def two_outputs(x):
    y = torch.linalg.inv(x @ W)
    return y @ x, torch.linalg.cholesky(W @ W.t() + 0 * y[0]) @ y


def own_effect(x):
    return noted(noted(x @ W) @ W) @ W


@pytest.fixture
def ordered():
    """The operator with an effect: its calls keep their order, by a token."""
    from torch._higher_order_ops.effects import _register_effectful_op
    from torch._library.effects import EffectType

    handle = _register_effectful_op("memgraph_tests::noted", EffectType.ORDERED)
    yield
    if handle is not None:
        handle.destroy()


@pytest.mark.inductor
@pytest.mark.parametrize("function", [one_token, two_outputs, own_effect], ids=lambda function: function.__name__)
@pytest.mark.parametrize("budget", [None, 1.0])
def test_tokens_of_effects(function, budget, ordered):
    def step(call):
        outputs = call(X)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs, torch.autograd.grad(outputs, (W,), [torch.ones_like(output) for output in outputs])

    torch._dynamo.reset()
    call = torch.compile(function, backend="memgraph", options={"budget": budget, "cache": False})
    NOTES.clear()
    for mine, theirs in zip(step(call), step(function), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    report = memgraph.report()
    assert report.source_of_peak == "inductor wrapper"
    # What the backward was given is given up in it; what stays are the outputs and the gradient.
    outputs, gradients = step(call)
    assert report.timeline.sums()[-1] == sum(value.untyped_storage().nbytes() for value in (*outputs, *gradients))


@pytest.mark.inductor
@pytest.mark.parametrize("budget", [None, 1.0])
def test_a_jagged_nested_tensor(budget):
    layer = nn.Linear(16, 16)
    rows = [torch.randn(5, 16), torch.randn(9, 16)]

    def function(nested):
        return layer(layer(nested)).values()

    def step(call):
        layer.zero_grad()
        y = call(torch.nested.nested_tensor(rows, layout=torch.jagged))
        y.backward(torch.ones_like(y))
        return [y.detach(), layer.weight.grad.clone(), layer.bias.grad.clone()]

    torch._dynamo.reset()
    call = torch.compile(function, backend="memgraph", options={"budget": budget, "cache": False})
    for mine, theirs in zip(step(call), step(function), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert memgraph.report().source_of_peak == "inductor wrapper"
