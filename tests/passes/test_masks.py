"""Attention told to be causal: what changes in Dynamo's graph, what stays, and what the step then computes."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

import memgraph
from memgraph.backend.before_autograd import before_autograd
from memgraph.backend.options import TileOptions
from memgraph.base import compat
from memgraph.facts.masks.causal import ATTENTION, arguments, causal_masks
from memgraph.facts.masks.kernels import taken_apart
from memgraph.machine.measure import peak_above_start
from memgraph.passes.graphs import EarlyPlan
from memgraph.passes.masks import masks
from tests.support.interpreted import backend
from tests.support.masks import captured, causal, queries
from tests.support.models import tiny

LENGTH = 600


def mask_of(length):
    return torch.arange(length)[:, None] >= torch.arange(length)


def rewritten(function, *inputs):
    before = captured(function, *inputs)
    found = before_autograd(before, TileOptions())
    return before.module, found.graphs.module, found


def calls(module):
    return [arguments(node) for node in module.graph.find_nodes(op="call_function", target=ATTENTION)]


def test_calls_that_share_a_mask_lose_it_and_the_mask_is_not_made():
    def attend(q):
        mask = mask_of(q.shape[2])
        once = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return F.scaled_dot_product_attention(once, q, q, mask, 0.0, False, scale=0.3)

    q = queries()
    before, after, found = rewritten(attend, q)
    assert all(given["attn_mask"] is None and given["is_causal"] is True for given in calls(after))
    assert calls(after)[1]["scale"] == 0.3
    assert not [node for node in after.graph.nodes if "arange" in node.name or node.name == "ge"]
    assert all(isinstance(given["attn_mask"], torch.fx.Node) for given in calls(before))  # the graph given stays
    assert torch.allclose(before(q)[0], after(q)[0], atol=1e-6)
    assert found.notes == ("2 calls of attention are told to be causal, without the mask that says so",)
    assert not found.refusals


def test_a_mask_that_others_read_stays_for_them():
    def attend(q):
        mask = mask_of(q.shape[2])
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask), mask.sum(), q.masked_fill(mask[0, 0], 1.0)

    q = queries()
    before, after, _ = rewritten(attend, q)
    assert calls(after)[0]["is_causal"] is True
    for want, got in zip(before(q), after(q), strict=True):
        assert torch.allclose(want, got, atol=1e-6)


def test_only_the_calls_with_a_causal_mask_lose_it():
    def attend(q):
        mask = mask_of(q.shape[2])
        window = mask & (torch.arange(q.shape[2]) > torch.arange(q.shape[2])[:, None] - 3)
        once = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return F.scaled_dot_product_attention(once, q, q, attn_mask=window)

    q = queries()
    before, after, found = rewritten(attend, q)
    assert [given["is_causal"] for given in calls(after)] == [True, False]
    assert torch.allclose(before(q)[0], after(q)[0], atol=1e-6)
    (refusal,) = found.refusals
    assert refusal.what == "tile: {'attention': 'auto'}" and "window" in refusal.reason


@pytest.mark.parametrize("grouped", [False, True])
def test_dropout_scale_and_grouped_heads_stay(grouped):
    def attend(q, k):
        mask = mask_of(q.shape[2])[None, None]
        return F.scaled_dot_product_attention(q, k, k, mask, dropout_p=0.5, scale=0.7, enable_gqa=grouped)

    q, k = queries(heads=4), queries(heads=2 if grouped else 4)
    before = captured(attend, q, k)
    plan = EarlyPlan(causal_masks(before.module).causal, drop_logits=False, slice_before_head=False)
    after = masks(before, plan).graphs.module
    (given,) = calls(after)
    assert (given["dropout_p"], given["scale"], given["enable_gqa"], given["is_causal"]) == (0.5, 0.7, grouped, True)
    torch.manual_seed(0)
    want = before.module(q, k)[0]
    torch.manual_seed(0)
    assert torch.allclose(want, after(q, k)[0], atol=1e-6)


def test_calls_that_torch_takes_apart_keep_the_mask_that_they_share():
    """A CPU has no kernel for attention with dropout: without the mask, each call would make one of its own."""

    def attend(q):
        mask = mask_of(q.shape[2])
        once = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        twice = F.scaled_dot_product_attention(once, q, q, attn_mask=mask, dropout_p=0.1)
        return F.scaled_dot_product_attention(twice, q, q, attn_mask=mask, dropout_p=0.1)

    _, after, found = rewritten(attend, queries())
    first, *others = calls(after)
    assert first["attn_mask"] is None and first["is_causal"] is True
    assert others[0]["attn_mask"] is others[1]["attn_mask"] is not None
    (refusal,) = found.refusals
    assert "the mask of 2 calls" in refusal.reason and "no kernel for such attention" in refusal.reason


@pytest.mark.parametrize(
    ("dropout", "narrower", "batched"), [(0.0, 0, True), (0.1, 0, True), (0.0, 2, True), (0.0, 0, False)]
)
def test_what_is_taken_apart_is_what_torch_takes_apart(dropout, narrower, batched):
    """Attention with dropout, with values narrower than keys, of tensors without a batch: torch says so itself."""

    def attend(q):
        value = q[..., narrower:]
        return F.scaled_dot_product_attention(q, q, value, attn_mask=mask_of(q.shape[-2]), dropout_p=dropout)

    q = queries() if batched else queries()[0]
    choice = SDPBackend(torch._fused_sdp_choice(q, q, q[..., narrower:], None, dropout, True))
    assert bool(taken_apart(captured(attend, q).module)) == (choice == SDPBackend.MATH)


@pytest.mark.parametrize("hardware", [None, "H100"])
def test_the_device_that_is_planned_for_decides(hardware):
    """Tensors on meta have no kernels at all: what counts is where the step shall run."""

    def attend(q, dropout):
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask_of(q.shape[2]).to(q.device), dropout_p=dropout)
        return out.sum()

    if hardware and not compat.traces_cuda():
        pytest.skip("this build of torch traces for no card that is not there")
    q = torch.empty(1, 2, 64, 16, device="meta", requires_grad=True)
    told = []
    for dropout in (0.0, 0.1):
        report = memgraph.plan(attend, q, dropout, options={"tile": True}, hardware=hardware)
        told.append(any("told to be causal" in note for note in report.notes))
    assert told == [True, False]


def test_a_mask_that_cannot_be_tried_is_refused():
    """The halves of a large mask, put together: the proof understands it, a run at some places does not."""

    def attend(q):
        mask = mask_of(q.shape[2])
        mask = torch.cat([mask[:100], mask[100:]])
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    _, after, found = rewritten(attend, torch.empty(1, 1, 3000, 4, device="cpu"))
    assert calls(after)[0]["attn_mask"] is not None
    (refusal,) = found.refusals
    assert "cannot be tried" in refusal.reason and "place by place" in refusal.reason
    _, after, found = rewritten(attend, queries(200))
    assert calls(after)[0]["attn_mask"] is None and not found.refusals


def test_the_option_leaves_attention_as_it_is():
    q = queries()
    before = captured(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask_of(q.shape[2])), q)
    for options in (None, TileOptions(attention=False)):
        found = before_autograd(before, options)
        assert found.graphs is before and not found.modified and not found.refusals


# --- models of transformers --------------------------------------------------------------------------------


def gradients(call, model, inputs):
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = call(**inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def error(want, got):
    return max(float((a - b).norm() / a.norm()) for a, b in zip(want, got, strict=True))


def of_two_kinds():
    """A Gemma with a window in its first layer, and none in its second."""
    made, inputs = tiny.gemma3()
    config = made.config
    config.layer_types = ["sliding_attention", "full_attention"]
    return type(made)(config), inputs


def trained(model, inputs, attention):
    """The gradients by memgraph with the FX interpreter in place of Inductor."""
    torch._dynamo.reset()
    tile = {"mlp": False, "loss": False, "attention": attention}
    return gradients(torch.compile(model, backend=backend(budget=None, tile=tile)), model, inputs)


@pytest.mark.slow
def test_gradients_are_those_of_eager_training():
    torch.manual_seed(0)
    made, inputs = of_two_kinds()
    model = tiny.Loss(made).train()
    want = gradients(model, model, inputs)
    assert error(want, trained(model, inputs, "auto")) < 1e-6
    report = memgraph.report()
    assert [note for note in report.notes if note.startswith("a call of attention is told to be causal")]
    assert [refusal for refusal in report.refusals if "window" in refusal.reason]


@pytest.mark.slow
def test_dropout_drops_what_it_dropped():
    torch.manual_seed(0)
    made, inputs = tiny.llama(0.2)
    model = tiny.Loss(made).train()
    want = trained(model, inputs, False)
    assert error(want, trained(model, inputs, "auto")) < 1e-6
    assert not [note for note in memgraph.report().notes if "told to be causal" in note]
    assert [refusal for refusal in memgraph.report().refusals if "no kernel for such attention" in refusal.reason]


@pytest.mark.slow
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_long_step_takes_less(symbolic):
    torch.manual_seed(0)
    model = tiny.Loss(tiny.llama()[0]).train()
    ids = torch.randint(0, 128, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    before = captured(lambda ids: model(input_ids=ids, labels=ids), ids, dynamic=1 if symbolic else None)
    after = before_autograd(before, TileOptions()).graphs
    inputs = [compat.size_hint(given) if compat.is_size(given) else given for given in before.inputs]
    results, peaks = [], []
    for module in (before.module, after.module):
        step = functools.partial(gradients, lambda module=module: module(*inputs)[0], model, {})
        results.append(step())
        peaks.append(peak_above_start(step))
    assert error(*results) < 1e-6
    assert peaks[1] < peaks[0] - LENGTH**2  # a byte for each entry, at least


def test_causal_is_what_torch_means():
    q = queries()
    want = F.scaled_dot_product_attention(q, q, q, attn_mask=causal(q.shape[2]))
    assert torch.allclose(want, F.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6)
