"""cuDNN's attention: by what was seen where no card can be asked, else by a trial on the card."""

from __future__ import annotations

import pytest
import torch

from memgraph.facts import kernel_scratch
from memgraph.facts.kernel_scratch import cuda, known, trial
from memgraph.facts.kernel_scratch.operands import Call

HALF = torch.bfloat16
FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention.default
BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default


def meta(*size: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def backward(heads: int = 16, grouped: int = 16) -> Call:
    """Attention over 2 x 4,096 tokens, heads of 128."""
    query, key = meta(2, heads, 4096, 128), meta(2, grouped, 4096, 128)
    number = meta(dtype=torch.int64)
    rows = meta(2, heads, 4096, 1, dtype=torch.float32)
    given = (query, query, key, key, query, rows, number, number, None, None, None, 4096, 4096, 0.0, True)
    return Call.of(BACKWARD, given, {}, (query, key, key))


def look(kernels: kernel_scratch.Kernels, call: Call) -> int:
    return kernels.bytes_of(call.op, call.args, call.kwargs, call.outputs, "cuda")


@pytest.fixture
def card(monkeypatch):
    """Kernels think that they are on a card, and what a trial finds there."""
    found: dict[str, int | str] = {}

    def measured(call: Call, device: str) -> int:
        assert device == "cuda"
        if call.name not in found:
            raise trial.NotTried("there is no card")
        return found.pop(call.name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(known.simulator, "here", lambda: False)
    monkeypatch.setattr(cuda, "card", lambda: "a card, cuDNN 1")
    monkeypatch.setattr(trial, "measure", measured)
    monkeypatch.setattr(known, "_measured", {})
    return found


def test_what_an_h100_took():
    """Allocations of 67,633,408 bytes and of 256 (benchmarks/results/2026-11-26-cuda-h100-second/attention.txt)."""
    assert look(kernels := kernel_scratch.Kernels(), backward()) == 67_633_408 and not kernels.notes
    query = meta(2, 16, 4096, 128)
    forward = Call.of(FORWARD, (query, query, query, None, True), {}, query)
    assert look(kernels, forward) == 256 and not kernels.notes


def test_what_an_h100_did_not_show_is_not_known():
    assert look(kernels := kernel_scratch.Kernels(), backward(grouped=4)) == 0
    assert "grouped heads" in kernels.notes[0] and "none is counted" in kernels.notes[0]


@pytest.mark.parametrize("grouped", [16, 4])
def test_a_card_is_asked_once(card, grouped):
    kernels = kernel_scratch.Kernels(1 << 34, machine=1 << 36)
    card[backward().name] = 1234
    assert look(kernels, backward(grouped=grouped)) == 1234 and not kernels.notes
    assert look(kernels, backward(grouped=grouped)) == 1234 and not card


def test_where_it_cannot_be_asked_what_was_seen_counts_and_is_told(card):
    for room, reason in ((1 << 34, "there is no card"), (1 << 20, "there is room for 1.0 MiB")):
        kernels = kernel_scratch.Kernels(room, machine=1 << 36)
        assert look(kernels, backward()) == 67_633_408
        assert reason in kernels.notes[0] and "up to 64.5 MiB is counted for a call" in kernels.notes[0]


@pytest.mark.parametrize("counted", [True, False])
def test_what_a_trial_on_a_card_reads_of_the_allocator(monkeypatch, counted):
    """A counter that only grows: of two runs the smaller sum, without what is returned.  Run on the CPU's memory."""
    asked = iter([0, 700, 1000, 1600] if counted else [0, 0, 0, 0])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"requested_bytes.all.allocated": next(asked)})
    monkeypatch.setattr(trial, "made_up", lambda call, device: ([torch.zeros(100, dtype=torch.uint8)] * 2, {}))
    call = Call.of(torch.ops.aten.maximum.default, [torch.zeros(100, dtype=torch.uint8)] * 2, {}, torch.zeros(100))
    monkeypatch.setattr(trial, "_check", lambda call, device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if counted:
        assert trial.measure(call, "cuda") == 500
    else:
        with pytest.raises(trial.NotTried, match="counts nothing"):
            trial.measure(call, "cuda")
