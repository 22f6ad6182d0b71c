"""The page of a graph that Inductor has compiled: its buffers bear the names of the plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memgraph
from memgraph.facts.actions import Recompute, Save
from memgraph.reporting.lifetimes import Stuff, lifetimes

pytestmark = pytest.mark.inductor


def test_what_is_saved_in_generated_code_is_what_the_plan_saves(tmp_path):
    torch._dynamo.reset()
    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
    model, x = nn.Sequential(*layers), torch.randn(512, 64)
    compiled = torch.compile(lambda x: model(x).square().mean(), backend="memgraph", options={"budget": 0.7})
    compiled(x).backward()
    report = memgraph.report()
    assert report.source_of_peak == "inductor wrapper" and report.timeline.timed
    found = lifetimes(report.timeline, report)
    assert [sum(row[n] for row in found.sums().values()) for n in range(len(found.changes))][-1] >= 0
    actions = {decision.name: decision.action for decision in report.decisions}
    large = [buffer for buffer in found.buffers if buffer.bytes > 4096]
    saved = {buffer.value for buffer in large if buffer.stuff is Stuff.SAVED}
    assert saved and all(isinstance(actions[name], Save) for name in saved), saved
    again = {buffer.value for buffer in large if buffer.stuff is Stuff.RECOMPUTED}
    assert again and all(isinstance(actions[name], Recompute) for name in again), again
    known = {item.name: item for item in report.described}
    assert all(known[name].operator and known[name].shape and known[name].source for name in saved | again)
    assert {known[name].module.split(".")[0] for name in saved} <= {"0", "1", "2", ""}
    assert type(report).from_json(report.to_json()) == report
    report.html(tmp_path / "report.html")
    memgraph.report().trace(tmp_path / "trace.json")
    assert dict(report.standing)["parameters and other tensors"] == report.baseline


def test_a_step_of_several_graphs_has_the_plan_of_each(tmp_path):
    torch._dynamo.reset()
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    options = {"budget": "1GiB"}
    one = torch.compile(lambda x: torch.tanh(first(x)), backend="memgraph", options=options)
    two = torch.compile(lambda x: second(x).square().mean(), backend="memgraph", options=options)
    for _ in range(2):
        two(one(torch.randn(32, 64))).backward()
    report = memgraph.step_report()
    assert [part.graph for part in report.parts] == [graph.graph for graph in report.graphs] and len(report.parts) == 2
    assert type(report).from_json(report.to_json()) == report
    report.html(tmp_path / "step.html")
