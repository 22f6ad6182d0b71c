"""What all passes have in common: one signature, and the truth about whether they changed anything."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from torch.nn import functional as F

from memgraph import passes
from memgraph.passes.drop_logits import drop_logits
from memgraph.passes.graphs import Captured, EarlyPlan, TilePlan
from memgraph.passes.partition import partition
from memgraph.passes.recompute import recompute
from memgraph.passes.slice_before_head import slice_before_head
from memgraph.planner.decisions import Plan
from tests.passes.test_partition import COPIED, ORDERED, Chain
from tests.support.graphs import capture_module
from tests.support.printer import text


@pytest.fixture(scope="module")
def split():
    return capture_module(Chain(), (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2))).split


def dynamo_graph(function, *inputs) -> Captured:
    """What Dynamo makes of a function."""
    found = []

    def backend(gm, given):
        found.append(Captured(gm, given))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found[0]


WEIGHT = torch.nn.Parameter(torch.ones(5, 4))
HIDDEN, LABELS = torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)


def shifted_loss(x, y):
    logits = F.linear(x, WEIGHT)
    return F.cross_entropy(logits[..., :-1, :].flatten(0, 1), y[..., 1:].flatten()), logits


def loss_alone(x, y):
    return shifted_loss(x, y)[0]


def test_every_pass_is_listed():
    listed = {pass_.__name__ for pass_ in (*passes.BEFORE_AUTOGRAD, *passes.JOINT, *passes.SPLIT, *passes.LOWERED)}
    modules = [
        importlib.import_module(f"memgraph.passes.{info.name}") for info in pkgutil.iter_modules(passes.__path__)
    ]
    names = {module.__name__.rpartition(".")[2] for module in modules}
    assert listed == {name for name in names if hasattr(importlib.import_module(f"memgraph.passes.{name}"), name)}


@pytest.mark.parametrize("pass_", passes.BEFORE_AUTOGRAD, ids=lambda pass_: pass_.__name__)
def test_nothing_is_asked_for_before_autograd(pass_):
    captured = dynamo_graph(shifted_loss, HIDDEN, LABELS)
    found = pass_(captured, EarlyPlan())
    assert found.graphs is captured and not found.modified and not found.notes and not found.refusals


@pytest.mark.parametrize("pass_", passes.JOINT, ids=lambda pass_: pass_.__name__)
def test_nothing_is_asked_for_of_the_joint_graph(split, pass_):
    found = pass_(split.joint, TilePlan())
    assert found.graphs is split.joint and not found.modified


@pytest.mark.parametrize("pass_", passes.SPLIT, ids=lambda pass_: pass_.__name__)
def test_nothing_is_asked_for_of_a_split(split, pass_):
    found = pass_(split, Plan((), (), stock=True))
    assert found.graphs is split and not found.modified


def test_an_order_that_the_backward_has_already_is_no_change(split):
    plan = Plan(("primals_1", "primals_2"), ORDERED)
    cut = partition(split, plan)
    assert cut.modified
    ordered = recompute(cut.graphs, plan)
    assert ordered.modified
    again = recompute(ordered.graphs, plan)
    assert again.graphs is ordered.graphs and not again.modified
    assert recompute(cut.graphs, Plan(("primals_1", "primals_2"), COPIED)).modified


def test_rows_are_sliced_before_the_head():
    captured = dynamo_graph(loss_alone, HIDDEN, LABELS)
    before = captured.module.code
    found = slice_before_head(captured, EarlyPlan(slice_before_head=True))
    assert found.modified and captured.module.code == before
    (head,) = found.graphs.module.graph.find_nodes(op="call_function", target=F.linear)
    assert head.meta["example_value"].shape == (2, 2, 5)
    for want, got in zip(captured.module(*captured.inputs), found.graphs.module(*captured.inputs), strict=True):
        assert torch.equal(want, got)
    again = slice_before_head(found.graphs, EarlyPlan(slice_before_head=True))
    assert again.graphs is found.graphs and not again.modified


def test_logits_are_dropped_or_refused():
    captured = dynamo_graph(shifted_loss, HIDDEN, LABELS)
    before = text(captured.module)
    found = drop_logits(captured, EarlyPlan(drop_logits=True))
    assert found.modified and text(captured.module) == before
    assert found.notes[0].endswith("[2, 3, 5] was dropped: it reads as not-a-number") and not found.refusals
    loss, logits = found.graphs.module(*captured.inputs)
    assert torch.equal(loss, captured.module(*captured.inputs)[0]) and logits.isnan().all()

    alone = dynamo_graph(loss_alone, HIDDEN, LABELS)
    refused = drop_logits(alone, EarlyPlan(drop_logits=True))
    assert refused.graphs is alone and not refused.modified and not refused.notes
    assert "no value from which its loss alone is computed" in refused.refusals[0].reason
