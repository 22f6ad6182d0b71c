"""The runner of passes: it verifies after each, names the pass that broke a graph, and shows the graphs to who asks."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys

import pytest
import torch

from memgraph import passes
from memgraph.backend.rewriting import check_captured, check_split, rewrite
from memgraph.base import compat
from memgraph.base.errors import VerifyError
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten
from memgraph.planner.decisions import Plan
from tests.passes.test_partition import COPIED, Chain
from tests.support import ROOT
from tests.support.graphs import capture_module

PLAN = Plan(("primals_1", "primals_2"), COPIED)


@pytest.fixture
def captured():
    return capture_module(Chain(), (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)))


def test_each_pass_that_changes_something_is_checked(captured):
    checked = []
    check = check_split(captured.before, ())

    def noted(before, after, pass_name):
        checked.append(pass_name)
        check(before, after, pass_name)

    found = rewrite(captured.split, passes.SPLIT, PLAN, noted)
    assert found.modified and checked == ["partition", "recompute"]
    assert rewrite(captured.split, passes.SPLIT, Plan((), (), stock=True), noted).graphs is not found.graphs
    assert checked == ["partition", "recompute"]


def forgets_a_factor(split, plan):
    backward = compat.copy_graph(split.backward)
    node = next(node for node in backward.graph.nodes if node.name == "mul_2")
    node.replace_all_uses_with(node.args[0])
    return Rewritten(dataclasses.replace(split, backward=backward), modified=True)


def test_the_error_names_the_pass(captured):
    with pytest.raises(VerifyError, match="not legal after pass 'forgets_a_factor'") as caught:
        rewrite(captured.split, (*passes.SPLIT, forgets_a_factor), PLAN, check_split(captured.before, ()))
    assert caught.value.pass_name == "forgets_a_factor"
    assert rewrite(captured.split, (*passes.SPLIT, forgets_a_factor), PLAN, None).modified


def test_a_graph_before_autograd_stays_a_graph(captured):
    def reads_what_comes_later(given, plan):
        module = compat.copy_graph(given.module)
        first, *_, last = (node for node in module.graph.nodes if node.op == "call_function")
        first.args = (last,)
        return Rewritten(Captured(module), modified=True)

    with pytest.raises(VerifyError, match="before it is defined") as caught:
        rewrite(Captured(captured.joint), (reads_what_comes_later,), EarlyPlan(), check_captured)
    assert caught.value.pass_name == "reads_what_comes_later"


def test_the_log_has_every_graph_before_and_after(captured, caplog):
    with caplog.at_level(logging.DEBUG, "memgraph"):
        rewrite(captured.split, passes.SPLIT, PLAN, None)
    lines = [record.getMessage() for record in caplog.records if record.name == "memgraph.backend.rewriting"]
    shown = [line.partition(":")[0] for line in lines]
    expected = [
        f"{name}, {when} {p}"
        for p in ("partition", "recompute")
        for when in ("before", "after")
        for name in ("forward", "backward")
    ]
    unchanged = [f"{p} changes nothing" for p in ("settle", "offload", "kernel_ends")]
    assert shown == [*expected, *unchanged]
    assert "exp_copy1" in lines[7] and "exp_copy1" not in lines[5]


PROGRAM = """
import torch
from tests.support.harness import Eager, gradients

class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).sin()
        return x.sum()

eager = Eager(last=True)
gradients(Chain(), eager, torch.ones(4, 8))
assert not eager.planned[0].plan.stock
"""


@pytest.mark.slow
def test_torch_logs_and_torch_trace(tmp_path):
    """As a user has them: by environment variables, in a process of its own."""
    environment = os.environ | {"TORCH_LOGS": "+memgraph", "TORCH_TRACE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for graph in ("forward", "backward"):
        for when in ("before partition", "after partition", "before recompute", "after recompute"):
            assert f"{graph}, {when}:" in done.stderr
    (trace,) = tmp_path.iterdir()
    artifacts = [
        json.loads(line[line.index("{") :]) for line in trace.read_text().splitlines() if '{"artifact"' in line
    ]
    names = [record["artifact"]["name"] for record in artifacts]
    assert {"memgraph_forward_after_partition", "memgraph_backward_after_recompute"} <= set(names)
    assert all(record["frame_id"] == 0 for record in artifacts if "memgraph" in record["artifact"]["name"])
