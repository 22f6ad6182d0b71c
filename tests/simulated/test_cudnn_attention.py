"""Attention that torch gives to cuDNN on a Hopper card: which calls that are, and what becomes of their masks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn.attention import SDPBackend

import memgraph
from memgraph import simulator
from memgraph.facts.masks.cudnn import given_to_cudnn
from memgraph.reporting.report import Report

LENGTH = 256
# The kernels that attention is left to: on the simulated card, where there is no cuDNN, the next best.
WITHOUT_MASK, WITH_MASK = ("flash_attention", "efficient_attention") if simulator.here() else ("cudnn_attention",) * 2


class Attention(nn.Module):
    """Attention with a mask that is made of positions, and of a padding where there is one."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(query.shape[-2], device=query.device)
        mask = places[:, None] >= places
        if padding is not None:
            mask = mask & padding[:, None, None, :]
        out = nn.functional.scaled_dot_product_attention(query, query, query, mask, self.dropout)
        return out.float().square().mean()


def lowered(*given: torch.Tensor | None, **options) -> tuple[str, Report]:
    """The code of a step, and its report."""
    torch._dynamo.reset()
    call = torch.compile(Attention(), backend="memgraph", options={"budget": None, "cache": False, **options})
    code = "\n".join(run_and_get_code(lambda: call(*given).backward())[1])
    return code, memgraph.report()


def queries(dtype: torch.dtype = torch.bfloat16, width: int = 64) -> torch.Tensor:
    return torch.zeros(2, 4, LENGTH, width, device="cuda", dtype=dtype, requires_grad=True)


def test_a_causal_mask_is_dropped_where_cudnn_would_have_taken_it():
    code, report = lowered(queries())
    assert WITHOUT_MASK in code and "efficient_attention" not in code
    assert "a call of attention is told to be causal, without the mask that says so" in report.notes
    assert not report.refusals


def test_a_mask_that_says_more_stays():
    code, report = lowered(queries(), torch.ones(2, LENGTH, dtype=torch.bool, device="cuda"))
    assert WITH_MASK in code and not report.notes and not report.refusals


def test_a_mask_that_another_kernel_takes_stays():
    """To the bit: nobody gets another kernel who did not ask."""
    code, report = lowered(queries(torch.float32))
    assert "efficient_attention" in code and not report.notes and not report.refusals
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        code, report = lowered(queries())
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    assert "efficient_attention" in code and not report.notes and not report.refusals


def test_who_asks_for_attention_as_it_is_keeps_the_mask():
    code, report = lowered(queries(), tile={"attention": False})
    assert WITH_MASK in code and not report.notes
    assert not [refusal for refusal in report.refusals if "mask" in refusal.reason]


def test_an_autocast_decides_too():
    with torch.autocast("cuda", torch.bfloat16):
        code, _ = lowered(queries(torch.float32))
    assert WITHOUT_MASK in code and "efficient_attention" not in code


KINDS = [
    (dtype, width, dropout) for dtype in ("bfloat16", "float32") for width in (64, 128, 256) for dropout in (0.0, 0.1)
]


def chosen() -> list:
    """In a process where torch prefers what it prefers on a card: its choice for each kind of call."""
    found = []
    for dtype, width, dropout in KINDS:
        query = queries(getattr(torch, dtype), width)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda")
        found.append(SDPBackend(torch._fused_sdp_choice(query, query, query, mask, dropout, False)).name)
    return found


@pytest.mark.skipif(not simulator.here(), reason="a card decides for itself")
def test_torch_would_have_chosen_it(monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0")
    wanted = [name == "CUDNN_ATTENTION" for name in simulator.call(f"{__name__}:chosen")]
    found = []

    def backend(module, inputs):
        found.append(bool(given_to_cudnn(module)))
        return module.forward

    for dtype, width, dropout in KINDS:
        torch._dynamo.reset()
        torch.compile(Attention(dropout), backend=backend)(queries(getattr(torch, dtype), width))
    assert found == wanted and any(found) and not all(found)
