"""What an optimizer would allocate that nobody has made, beside one that was made of real parameters."""

import pytest
import torch
from torch import nn

from memgraph import OptionsError
from memgraph.step.forecast import forecast
from memgraph.step.future_optimizer import forecast_of, maker

CPU = torch.device("cpu")


def parameters(device="cpu"):
    return [nn.Parameter(torch.empty(64, 32, device=device)), nn.Parameter(torch.empty(32, device=device))]


@pytest.mark.parametrize("text", ["adamw", "AdamW(amsgrad=True)", "sgd", "SGD(momentum=0.9)", "adagrad", "rmsprop"])
def test_as_that_of_real_parameters(text):
    made = maker(text)
    real = forecast(made(parameters()), CPU)
    for device in ("cpu", "meta"):
        future = forecast_of(text, parameters(device), CPU)
        assert (future.name, future.method) == (real.name, real.method)
        assert future.state_to_come == future.state_bytes == real.state_bytes  # nothing of it is there yet
        assert future.step_bytes == real.step_bytes


def test_a_gpu_that_is_not_here_updates_all_parameters_at_once():
    many = [nn.Parameter(torch.empty(64, 32, device="meta")) for _ in range(8)]
    bytes_of_all = sum(p.numel() * 4 for p in many)
    at_once = forecast_of("adamw", many, torch.device("cuda"))
    one_by_one = forecast_of("adamw(foreach=False)", many, torch.device("cuda"))
    fused = forecast_of("adamw(fused=True)", many, torch.device("cuda"))
    assert at_once.state_bytes >= 2 * bytes_of_all
    assert at_once.step_bytes >= bytes_of_all > one_by_one.step_bytes >= fused.step_bytes


def test_a_maker_of_the_caller_and_frozen_models():
    found = forecast_of(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), parameters("meta"), CPU)
    assert found.state_to_come == sum(p.numel() * 4 for p in parameters())
    assert forecast_of("adamw", [], CPU) is None


@pytest.mark.parametrize(
    "text, says",
    [
        ("adamv", "did you mean 'adam"),
        ("lbfgs", "no optimizer 'lbfgs'"),
        ("adamw(", "is not understood"),
        ("adamw(__import__('os'))", "is not understood"),
        ("adamw(lr=print)", "is not understood"),
        ("adamw(lr=-1)", "Invalid learning rate"),
        ("adamw(speed=3)", "unexpected keyword argument 'speed'"),
    ],
)
def test_what_is_refused(text, says):
    with pytest.raises(OptionsError, match=says.replace("(", r"\(")):
        forecast_of(text, parameters(), CPU)
