"""Training on a GPU: bytes as predicted, budgets kept, and the gradients of an unplanned step, under every lever."""

from __future__ import annotations

import gc

import pytest
import torch

import memgraph
from memgraph import runtime, simulator
from memgraph.machine.measure import peak_above_start
from tests.support.models.sized import Shape, make
from tests.support.models.stack import Stack

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available() or simulator.here(), reason="no GPU that computes"),
]
MIB = 1024**2
SHAPE = Shape(layers=2, hidden=256, sequence=2048, vocabulary=8192, batch=2, dropout=0.1)


@pytest.fixture
def scratch(tmp_path):
    yield str(tmp_path)
    torch._dynamo.reset()
    gc.collect()
    runtime.release()
    assert runtime.statistics("cuda").nvme_live == 0
    assert not list(tmp_path.iterdir())


def options(lever: str, scratch: str) -> dict:
    return {
        "recompute": {"budget": 0.5},
        "smallest": {"budget": 0.001},
        "host": {"budget": None, "offload": {"host": True, "min_bytes": 0}, "rules": {"*": "offload:host"}},
        "disk": {"budget": None, "offload": {"nvme": scratch, "min_bytes": 0}, "rules": {"*": "offload:nvme"}},
        "all": {"budget": 0.4, "offload": {"host": "4GiB", "nvme": scratch}, "tile": True},
        "outlined": {"budget": 0.5, "outline": True},
    }[lever] | {"cache": False}


def gradients(call, parameters, *inputs: torch.Tensor) -> list[torch.Tensor]:
    for parameter in parameters:
        parameter.grad = None
    torch.manual_seed(1)
    loss = call(*inputs)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in parameters)]


def compiled(function, given: dict):
    """The function, compiled anew."""
    torch._dynamo.reset()
    return torch.compile(function, backend="memgraph", options=given)


def error(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest error of a tensor, relative, by norm."""
    pairs = zip(got, want, strict=True)
    return max(float((a - b).double().norm()) / float(b.double().norm()) for a, b in pairs)


@pytest.mark.parametrize("lever", ["recompute", "host", "disk"])
def test_every_step_has_the_same_bits(lever, scratch):
    """A copy that is late once, or memory that is given away too early, would show."""
    torch.manual_seed(0)
    model = Stack(6, 1024).cuda()
    x = torch.randn(4096, 1024, device="cuda")
    parameters = list(model.parameters())
    want = [tensor.clone() for tensor in gradients(compiled(model, {"budget": None}), parameters, x)]
    call = compiled(model, options(lever, scratch))
    first = [tensor.clone() for tensor in gradients(call, parameters, x)]
    assert error(first, want) < 1e-6  # the kernels are others, and add up in another order
    for _ in range(5):
        assert all(map(torch.equal, gradients(call, parameters, x), first))
    if lever != "recompute":
        assert memgraph.report().bytes_on("nvme" if lever == "disk" else lever) > 100 * MIB


LEVERS = ("recompute", "smallest", "host", "disk", "all", "outlined")
TRAINED = [(family, lever, torch.float32) for family in ("llama", "gpt2") for lever in LEVERS]
TRAINED += [("llama", lever, torch.bfloat16) for lever in ("recompute", "all")]


@pytest.mark.parametrize(("family", "lever", "dtype"), TRAINED)
def test_a_model_of_transformers(family, lever, dtype, scratch):
    case = make(family, SHAPE, "cuda", dtype)
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    want = [tensor.clone() for tensor in gradients(compiled(case.loss, {"budget": None}), parameters, *case.inputs)]
    given = options(lever, scratch)
    call = compiled(case.loss, given)
    try:
        got = gradients(call, parameters, *case.inputs)
    except memgraph.BudgetError as refusal:
        call = compiled(case.loss, given | {"budget": refusal.minimum})
        got = gradients(call, parameters, *case.inputs)
    assert error(got, want) <= (1e-5 if dtype == torch.float32 else 2e-2)
    del got
    report = memgraph.report()
    case.clear()
    for _ in range(2):
        peak = peak_above_start(lambda: call(*case.inputs).backward(), "cuda")
        case.clear()
        assert abs(peak - report.above) <= 64 * 1024
        if report.budget is not None:
            assert peak <= report.budget - report.baseline


@pytest.mark.parametrize("lever", ["host", "disk", "all"])
def test_an_optimizer_s_steps_end_where_plain_inductor_s_do(lever, scratch):
    losses = {}
    for name, given in {"plain": {"budget": None}, lever: options(lever, scratch)}.items():
        torch.manual_seed(0)
        model = Stack(3, 512).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        call, x = compiled(model, given), torch.randn(8192, 512, device="cuda")
        losses[name] = []
        for number in range(6):
            torch.manual_seed(number)
            loss = call(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses[name].append(loss.item())
    plain, found = losses.values()
    assert found == pytest.approx(plain, rel=1e-5)
    assert plain[-1] < plain[0]
