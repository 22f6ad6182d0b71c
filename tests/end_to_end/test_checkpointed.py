"""Layers that are compiled one by one, inside of torch.utils.checkpoint: they train as with Inductor, and in budget."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memgraph

X = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    """Feed-forward with a residual, dropout on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(64, 256), nn.Linear(256, 64), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(x))))


def trained(layers, call, steps=3):
    """Losses and weights after some steps, and the peak above the start of the last two, in bytes."""
    optimizer, losses = torch.optim.AdamW(layers.parameters()), []
    torch.manual_seed(1)

    def step():
        x = X.clone().requires_grad_()
        loss = call(layers, x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    step()
    peak = max(memgraph.measure_peak(step) for _ in range(steps - 1))
    return [*losses, *(weight.detach().clone() for weight in layers.parameters())], peak


def compiled_and_trained(layers, call, **asked):
    """As `trained`, of copies of the layers that are compiled one by one."""
    torch._dynamo.reset()
    own = copy.deepcopy(layers)
    for layer in own:
        layer.compile(**asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error", memgraph.PlanWarning)
        return trained(own, call)


def one_by_one(layers, x, *, reentrant=False):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=reentrant)
    return x


def reentrant(layers, x):
    return one_by_one(layers, x, reentrant=True)


def in_pairs(layers, x):
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        x = checkpoint(lambda x, first=first, second=second: second(first(x)), x, use_reentrant=False)
    return x


def nested(layers, x):
    return checkpoint(lambda x: in_pairs(layers, x), x, use_reentrant=False)


@pytest.mark.inductor
@pytest.mark.parametrize("call", [one_by_one, reentrant, in_pairs, nested])
def test_they_train_as_with_inductor_and_keep_the_budget(call):
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(4))
    reference, _ = compiled_and_trained(layers, call, backend="inductor")
    budget = "auto"
    for _ in range(2):
        planned, peak = compiled_and_trained(layers, call, backend="memgraph", options={"budget": budget})
        for one, other in zip(planned, reference, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        predicted = max(figures.predicted_peak for figures in memgraph.step_report().rounds)
        assert peak <= predicted
        assert budget == "auto" or peak <= budget
        budget = predicted + 2 * 1024**2  # a first launch counts what all layers will have made by its backward
