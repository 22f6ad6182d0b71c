"""A forecast is held against the real optimizer: bytes of its state, and the peak of its real steps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.machine.measure import peak_above_start
from memgraph.step.fake_step import _shortened
from memgraph.step.forecast import Method, OptimizerForecast, forecast
from tests.step.optimizers import CPU, OPTIMIZERS, Replacing, parameters, real_state
from tests.support.lanes import examples, slow_but

SCALARS = 16  # bytes: numbers that a kernel makes tensors of for one call, which no fake shows


def holds(optimizer, steps=2) -> OptimizerForecast:
    """The forecast, once real steps have shown that it is true."""
    existing = real_state(optimizer)
    told = forecast(optimizer, CPU)
    assert told.method is Method.FAKE_STEP, told.note
    assert real_state(optimizer) == existing
    peaks = [peak_above_start(optimizer.step, "cpu") for _ in range(steps)]
    assert told.state_bytes == real_state(optimizer)
    assert told.state_to_come == told.state_bytes - existing
    highest = max(peaks[0] - told.state_to_come, *peaks[1:])
    assert 0 <= highest - told.step_bytes <= SCALARS
    return told


@pytest.mark.parametrize("name", slow_but(OPTIMIZERS, fast=("adamw", "adamw foreach", "sgd momentum", "lion")))
def test_fake_is_real(name):
    holds(OPTIMIZERS[name](parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "adamw foreach", "sgd nesterov", "lion"])
def test_fake_is_real_in_bfloat16(name):
    holds(OPTIMIZERS[name](parameters(dtype=torch.bfloat16)))


@pytest.mark.slow
def test_a_way_that_is_taken_later_counts():
    """RAdam rectifies from its sixth step on."""
    holds(optim.RAdam(parameters()), steps=7)


def test_state_that_is_made_anew():
    optimizer = Replacing(parameters())
    told = forecast(optimizer, CPU)
    weights = optimizer.param_groups[0]["params"]

    def steps():  # in one session, or the profiler would miss that old state is freed
        for _ in range(4):
            for p in weights:
                p.grad = torch.ones_like(p)
            optimizer.step()

    for p in weights:
        p.grad = None
    gradients = sum(p.numel() for p in weights) * 4
    assert peak_above_start(steps, "cpu") == gradients + told.state_bytes + told.step_bytes
    assert told.state_bytes == real_state(optimizer) == 2 * gradients


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="no Muon in this torch")
def test_muon():
    """Its products in bfloat16 have scratch of their own: up to 15 % of what a step takes."""
    with kernel_scratch.looking_up(kernel_scratch.for_compilation(None, 0, cache=False)):
        optimizer = optim.Muon(parameters([(600, 600), (600, 300)]))
        tried = holds(optimizer)
    # Where kernels are not tried, their bounds count: nothing is told to be smaller than it is.
    assert tried.step_bytes <= forecast(optimizer, CPU).step_bytes


@pytest.mark.slow
def test_transformers_adafactor():
    optimization = pytest.importorskip("transformers.optimization")
    holds(optimization.Adafactor(parameters()))
    holds(optimization.Adafactor(parameters(dtype=torch.bfloat16), lr=1e-3, relative_step=False, beta1=0.9))


def test_groups_and_what_gets_no_gradient():
    first, second, third = parameters([(50, 50), (300,), (20, 20)])
    third.requires_grad_(False)
    third.grad = None
    groups = [{"params": [first, third]}, {"params": [second], "amsgrad": True, "foreach": True}]
    told = holds(optim.AdamW(groups))
    assert told.state_bytes == 2 * 50 * 50 * 4 + 4 + 3 * 300 * 4 + 4


@pytest.mark.parametrize("name", ["adamw", "adamw foreach", "radam foreach", "lion", "adafactor"])
def test_a_resumed_optimizer_has_its_state(name):
    before = OPTIMIZERS[name](parameters())
    first = forecast(before, CPU)
    before.step()
    after = OPTIMIZERS[name](parameters())
    after.load_state_dict(before.state_dict())
    for told in (forecast(before, CPU), forecast(after, CPU)):
        assert told.state_to_come == 0 and told.state_bytes == real_state(after) == first.state_bytes
        assert told.step_bytes == first.step_bytes


def test_state_of_some_parameters_exists():
    given = parameters([(30, 30)] * 6)
    for parameter in given[3:]:
        parameter.grad = None
    optimizer = optim.SGD(given, momentum=0.9)
    optimizer.step()
    assert forecast(optimizer, CPU).state_to_come == 3 * 30 * 30 * 4


@settings(max_examples=examples(8), deadline=None)
@given(
    st.lists(st.sampled_from([(64, 64), (64,), (32, 48), (3, 5, 7), (1,)]), min_size=1, max_size=10),
    st.integers(1, 4),
    st.sampled_from(["adamw", "adamw foreach", "sgd nesterov", "adafactor", "rmsprop", "lion", "adagrad"]),
)
def test_any_shapes(shapes, repeats, name):
    holds(OPTIMIZERS[name](parameters(shapes * repeats)))


# Other devices: nothing needs to be there


def test_cuda_blocks_and_the_steps_on_the_host():
    with torch._subclasses.FakeTensorMode():
        given = [nn.Parameter(torch.empty(100, device="cuda")), nn.Parameter(torch.empty(1000, 7, device="cuda"))]
    bytes_of = {100: 512, 7000: 28160}  # whole blocks of 512
    told = forecast(optim.AdamW(given, foreach=True), torch.device("cuda"))
    both = sum(bytes_of.values())
    assert (told.state_bytes, told.state_to_come) == (2 * both, 2 * both)
    assert both <= told.step_bytes <= both + 512
    assert forecast(optim.AdamW(given, foreach=True), CPU).state_bytes == 2 * 4
    fused = forecast(optim.AdamW(given, fused=True), torch.device("cuda:0"))
    assert (fused.state_bytes, fused.step_bytes) == (2 * both + 2 * 512, 0)


def test_foreach_is_told_where_it_matters():
    given = [nn.Parameter(torch.empty(1 << 18)) for _ in range(3)]
    assert "foreach=False or fused=True" in forecast(optim.AdamW(given, foreach=True), CPU).note
    assert "fused" not in forecast(optim.RMSprop(given, foreach=True), CPU).note
    assert forecast(optim.AdamW(given), CPU).note == ""


def test_foreach_by_default():
    class OnCuda:  # a parameter, as far as torch looks
        device = torch.device("cuda")

    step = compat.bare_step(optim.AdamW)
    assert not compat.foreach_by_default(step, parameters([(3,)]), {})
    assert compat.foreach_by_default(step, [], {}) and not compat.foreach_by_default(step, [OnCuda()], {})
    assert not compat.foreach_by_default(compat.bare_step(optim.Adafactor), [], {})
    assert not compat.foreach_by_default(step, [], {"lr": torch.tensor(1.0)})


# Layers that repeat


def test_stretches_that_repeat_are_kept_twice():
    def left(text):
        return "".join(text[n] for n in _shortened(list(text)))

    assert left("e" + "abcd" * 9 + "f") == "eabcdabcdf"
    assert left("aaaaaa") == "aa" and left("abab") == "abab" and left("abc") == "abc" and left("") == ""
    assert left("e" + ("a" + "x" * 8) * 5 + "f") == "eaxxaxxf"
