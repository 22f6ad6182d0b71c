"""A plan is made in one process and used in another, with planning switched off."""

from __future__ import annotations

import pytest
import torch

import memgraph
from memgraph.planner.solve import Planner
from tests.end_to_end.test_inductor import Chain, compiled_step
from tests.support.processes import in_a_process

pytestmark = [pytest.mark.inductor, pytest.mark.slow]


def model(rows: int = 1024):
    torch.manual_seed(0)
    return Chain(), {"x": torch.randn(rows, 64)}


def planned(folder: str) -> None:
    """Plan under a budget, and leave the plan, the gradients and the measured peak."""
    module, inputs = model()
    dry = memgraph.plan(module, **inputs, options={"budget": None})
    budget = dry.baseline + int(0.8 * (dry.unplanned_peak - dry.baseline))
    _, found, peak = compiled_step(module, inputs, budget=budget)
    report = memgraph.report()
    assert report.predicted_peak <= budget
    report.plan.save(f"{folder}/plan.json")
    torch.save({"found": found, "peak": peak, "above": report.above}, f"{folder}/found.pt")


def test_a_plan_of_another_process_is_used_as_it_is(tmp_path, monkeypatch):
    in_a_process(planned, str(tmp_path))
    theirs = torch.load(tmp_path / "found.pt")
    path = str(tmp_path / "plan.json")
    made = memgraph.Plan.load(path)
    dropped = {d.action.lever for d in made.graphs[0].plan.decisions}
    assert "recompute" in dropped and not made.graphs[0].plan.stock

    def refuse(*_, **__):
        raise AssertionError("a plan was made")

    for name in ("best", "smallest", "offered"):
        monkeypatch.setattr(Planner, name, refuse)
    module, inputs = model()
    _, found, peak = compiled_step(module, inputs, plan=path)
    report = memgraph.report()
    assert (peak, report.above) == (theirs["peak"], theirs["above"])
    assert report.plan.graphs[0].plan == made.graphs[0].plan and report.budget is None
    assert report.notes[0] == "by the plan of option 'plan', as it is: nothing was planned"
    assert len(found) == len(theirs["found"])
    assert all(torch.equal(*pair) for pair in zip(found, theirs["found"], strict=True))

    # A warm cache knows it again; another plan at the same path is another entry of it.
    again = compiled_step(module, inputs, plan=path)[1]
    assert memgraph.report().cached and memgraph.report().plan == report.plan
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))

    module, inputs = model(512)
    with pytest.raises(
        memgraph.PlanError, match=r"the plan's \d+\w\w input is \[1024, 64\] float32; this graph's is \[512, 64\]"
    ):
        compiled_step(module, inputs, plan=path)


class TwoGraphs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x)).exp() * 2
        torch._dynamo.graph_break()
        return torch.sigmoid(self.second(x)).exp().mean()


def test_a_file_holds_the_plans_of_all_graphs_of_a_step(tmp_path, monkeypatch):
    torch.manual_seed(0)
    module, inputs = TwoGraphs(), {"x": torch.randn(256, 64)}
    before = len(memgraph.reports())
    reference = compiled_step(module, inputs, budget="1GiB")[1]
    plans = [report.plan for report in memgraph.reports()[before:]]
    step = memgraph.Plan.joined(plans)
    assert len(step.graphs) == 2
    assert {graph.graph for graph in memgraph.step_report().plan.graphs} == {graph.graph for graph in step.graphs}
    path = str(tmp_path / "step.json")
    step.save(path)
    found = compiled_step(module, inputs, plan=path)[1]
    assert all(torch.equal(*pair) for pair in zip(found, reference, strict=True))

    level, above = memgraph.report().baseline, max(graph.peak for graph in step.graphs)
    with pytest.raises(memgraph.BudgetError, match="not kept by the plan that option 'plan' gives") as error:
        compiled_step(module, inputs, plan=path, budget=level + above // 2)
    assert error.value.given and error.value.minimum > level + above // 2
    _, found, peak = compiled_step(module, inputs, plan=path, budget=error.value.minimum + 2**20)
    assert memgraph.report().budget == error.value.minimum + 2**20 and peak <= above + 2**20
    assert all(torch.equal(*pair) for pair in zip(found, reference, strict=True))

    plans[-1].save(path)  # the same path, another content: nothing of the caches is taken for it
    with pytest.raises(memgraph.PlanError, match=r"the plan is that of another graph than TwoGraphs.\w+ "):
        compiled_step(module, inputs, plan=path)
