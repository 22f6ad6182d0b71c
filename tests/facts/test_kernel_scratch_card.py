"""cuDNN's attention and workspaces of products: what was seen where no card can be asked, else a trial on the card."""

from __future__ import annotations

import pytest
import torch

from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.facts.kernel_scratch import cuda, cuda_products, known, trial
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


def product(name: str, *given: torch.Tensor, **keywords: float) -> Call:
    """A product of 4,096 x 1,024 by 1,024 x 256; given: what is added."""
    return Call.of(
        getattr(torch.ops.aten, name).default, (*given, meta(4096, 1024), meta(1024, 256)), keywords, meta(4096, 256)
    )


PRODUCTS = {
    "mm": (product("mm"), 32),
    "with a bias": (product("addmm", meta(256)), 1),
    "half of a bias": (product("addmm", meta(256), beta=0.5), 32),
    "with gaps": (product("addmm", meta(256, 2)[:, 0]), 32),
    "with a matrix": (product("addmm", meta(4096, 256)), 32),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_take_a_workspace_where_none_is_kept(name, monkeypatch):
    """Of an H100, where there is no card."""
    call, size = PRODUCTS[name]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(compat, "workspaces_are_kept", lambda: True)
    assert look(kernels := kernel_scratch.Kernels(), call) == 0
    monkeypatch.setattr(compat, "workspaces_are_kept", lambda: False)
    assert look(kernels, call) == size * 1024**2 and not kernels.notes


@pytest.fixture
def tried(monkeypatch):
    """Products think that they are on a card where each takes a workspace; the small ones that were run there."""
    found: list[Call] = []

    def measured(call: Call, device: str) -> int:
        found.append(call)
        return 4321

    monkeypatch.setattr(cuda_products, "_found", {})
    monkeypatch.setattr(cuda_products, "_sizes", lambda: (3, 5))
    monkeypatch.setattr(compat, "workspaces_are_kept", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(trial, "measure", measured)
    return found


def test_a_small_product_tells_which_workspace_a_large_one_takes(tried):
    for _ in range(2):
        for call in (product("addmm", meta(256)), product("addmm", meta(256, 3)[:, 0]), product("mm")):
            assert look(kernels := kernel_scratch.Kernels(), call) == 4321 and not kernels.notes
    assert [str(call.args[0]) for call in tried] == ["bfloat16[64][1]", "bfloat16[64][2]", "bfloat16[64,64][64,1]"]
    look(kernels, product("addmm", meta(256, 4096).t()))
    assert str(tried[-1].args[0]) == "bfloat16[64,64][1,64]"


def test_what_a_user_sets_is_tried_anew(tried, monkeypatch):
    """The sizes of workspaces, and the library that multiplies."""
    look(kernels := kernel_scratch.Kernels(), product("mm"))
    monkeypatch.setattr(cuda_products, "_sizes", lambda: (3, 7))
    look(kernels, product("mm"))
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda: "another")
    look(kernels, product("mm"))
    assert len(tried) == 3


def test_where_no_product_can_be_tried_the_larger_workspace_counts(tried, monkeypatch):
    def measured(call: Call, device: str) -> int:
        raise trial.NotTried("no memory")

    monkeypatch.setattr(trial, "measure", measured)
    assert look(kernel_scratch.Kernels(), product("mm")) == 5


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
