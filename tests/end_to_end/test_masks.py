"""A causal mask that is not made, through Inductor: plain Inductor's gradients up to rounding, and a lower peak."""

from __future__ import annotations

import pytest
import torch

import memgraph
from memgraph.machine.measure import peak_above_start
from tests.support.models import sized

pytestmark = [pytest.mark.inductor, pytest.mark.slow]
LENGTH = 1536
SHAPE = {"layers": 1, "hidden": 32, "inner": 64, "heads": 2, "vocabulary": 64}


def gradients(call, model, ids):
    model.zero_grad(set_to_none=True)
    loss = call(input_ids=ids, labels=ids)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def test_a_long_llama_without_its_mask():
    model = sized.long_llama(SHAPE, "cpu", "float32")
    ids = torch.randint(0, 64, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    torch._dynamo.reset()
    want = gradients(torch.compile(model), model, ids)
    torch._dynamo.reset()
    tile = {"mlp": False, "loss": False}
    call = torch.compile(model, backend="memgraph", options={"budget": None, "tile": tile, "cache": False})
    got = gradients(call, model, ids)
    assert max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True)) < 1e-6
    peak, report = peak_above_start(lambda: gradients(call, model, ids)), memgraph.report()
    assert abs(report.predicted_peak - report.baseline - peak) < 0.02 * peak
    assert peak < 4 * LENGTH**2  # what is added to the scores would take as much alone
