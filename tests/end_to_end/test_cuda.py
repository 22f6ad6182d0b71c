"""Training on a GPU: bytes as predicted, budgets kept, and the gradients of an unplanned step, under every lever."""

from __future__ import annotations

import gc

import pytest
import torch

import memgraph
from memgraph import runtime, simulator
from memgraph.facts.actions import Tile
from memgraph.machine.measure import peak_above_start
from memgraph.verify.attention import attend
from memgraph.verify.smaller import Sizes
from tests.support.attention import Attention, window
from tests.support.card_kernels import called
from tests.support.models.sized import Shape, make
from tests.support.models.stack import Stack

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available() or simulator.here(), reason="no GPU that computes"),
]
aten = torch.ops.aten
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


@pytest.mark.parametrize("length", [8192, 8000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_shards_of_its_queries(dtype, length):
    """By memory-efficient attention, or by cuDNN where torch prefers that."""
    torch.manual_seed(0)
    model = Attention(window(700), layers=2, features=64).to("cuda", dtype)
    x, parameters = torch.randn(1, length, 128, device="cuda", dtype=dtype), list(model.parameters())
    peaks, found = {}, []
    for attention in (False, 4):
        tile = {"mlp": False, "loss": False, "attention": attention}
        call = compiled(model, {"budget": None, "tile": tile, "cache": False})
        found.append([tensor.clone() for tensor in gradients(call, parameters, x)])
        assert error(found[-1], found[0]) <= (1e-5 if dtype == torch.float32 else 2e-2)
        for parameter in parameters:
            parameter.grad = None
        peaks[attention] = peak_above_start(lambda call=call: call(x).backward(), "cuda")
        report = memgraph.report()
        assert abs(peaks[attention] - report.above) <= 64 * 1024
        assert len([d for d in report.decisions if isinstance(d.action, Tile)]) == (2 if attention else 0)
    mask = length * length * dtype.itemsize
    assert peaks[False] - peaks[4] > mask / 2


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_what_stands_in_for_a_kernel_of_attention_gives_what_it_gives(name):
    """`memgraph/verify/attention.py`, by which tiles are tried on the CPU."""
    torch.manual_seed(0)
    forward = getattr(aten, f"_scaled_dot_product_{name}_attention").default
    backward = getattr(aten, f"_scaled_dot_product_{name}_attention_backward").default
    shape = (2, 4, 96, 64)
    q, k, v, tangent = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    places = torch.arange(96, device="cuda")
    bias = torch.where(places[:, None] - places < 40, 0.0, float("-inf")).bfloat16().expand(2, 4, 96, 96)
    given = (q, k, v, bias, True)
    out, sums, *rest = forward(*given)
    if name == "efficient":
        again = (tangent, q, k, v, bias, out, sums, *rest, 0.0, [True, True, True, False])
    else:
        again = (tangent, q, k, v, out, sums, *rest[4:6], bias, None, None, 96, 96, 0.0, False)
    for kernel, args, made in ((forward, given, (out, sums)), (backward, again, backward(*again)[:3])):
        found = attend(called(kernel, *args), tuple(map(here, args)), {}, Sizes({}, {}))
        assert error([item.cpu() for item in made], list(found[: len(made)])) < 2e-2


def here(item: object) -> object:
    return item.cpu() if isinstance(item, torch.Tensor) else item


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
