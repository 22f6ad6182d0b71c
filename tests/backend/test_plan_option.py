"""The option `plan`: a plan that was kept is used as it is, on the graph that it was made for; nothing is lowered."""

import dataclasses
import json
import shutil

import pytest
import torch
from torch import nn

import memgraph
from memgraph.backend.options import parse_options
from memgraph.facts.actions import Offload, Recompute, Tile
from memgraph.planner.solve import Planner
from tests.support.lanes import slow_but

WIDTH, ROWS, LAYERS = 64, 2048, 3


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def planned(rows: int = ROWS, model: nn.Module | None = None, **options):
    with torch.device("meta"):
        model, x = model or Model(), torch.empty(rows, WIDTH)
    return memgraph.plan(model, x, options={"budget": None, **options}, device="cpu")


@pytest.fixture
def nothing_is_planned(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a plan was made")

    for name in ("best", "smallest", "offered"):
        monkeypatch.setattr(Planner, name, refuse)


MADE_WITH = {
    "save and recompute": ({"budget": 0.7}, Recompute),
    "rules": ({"rules": {"layers.1": "recompute"}}, Recompute),
    "offload": ({"offload": {"host": True, "min_bytes": "1GiB"}, "rules": {"layers.*.up": "offload:host"}}, Offload),
    "tiles": ({"tile": True, "rules": {"layers.*": "tile:4"}}, Tile),
    "Inductor's own": ({}, type(None)),
}


@pytest.mark.parametrize("what", slow_but(MADE_WITH, fast=("rules", "offload")))
def test_a_kept_plan_is_made_again_without_planning(what, tmp_path, request):
    options, lever = MADE_WITH[what]
    made, path = planned(**options), tmp_path / "plan.json"
    assert lever is type(None) or any(isinstance(d.action, lever) for d in made.decisions)
    made.plan.save(path)
    request.getfixturevalue("nothing_is_planned")
    found = memgraph.plan(Model(), torch.empty(ROWS, WIDTH), options={"plan": str(path)})
    (mine,), (theirs,) = found.plan.graphs, made.plan.graphs
    assert mine.plan == theirs.plan and mine.identity.same(theirs.identity)
    assert found.predicted_peak == made.predicted_peak and found.timeline.sums() == made.timeline.sums()
    assert found.predicted_time == pytest.approx(made.predicted_time) and found.budget is None
    assert found.notes[0] == "by the plan of option 'plan', as it is: nothing was planned"
    assert found.plan.options == made.plan.options


def test_a_file_names_no_place_of_the_machine(tmp_path):
    made = planned(budget=0.7)
    assert any(__file__ in decision.source for decision in made.decisions)
    text = made.plan.to_json()
    assert __file__ not in text and "site-packages" not in text and str(tmp_path) not in text
    assert memgraph.Report.from_json(made.to_json()) == made


def test_another_size_is_refused_with_the_first_difference(tmp_path):
    path = tmp_path / "plan.json"
    planned(budget=0.7).plan.save(path)
    told = r"input is \[2048, 64\] float32; this graph's is \[1024, 64\] float32 \(it was made with torch 2"
    with pytest.raises(memgraph.PlanError, match=told):
        planned(ROWS // 2, plan=path)
    with pytest.raises(memgraph.BudgetError, match="is not kept by the plan that option 'plan' gives") as error:
        planned(plan=path, budget="1MiB")
    assert error.value.given


@pytest.mark.slow
def test_a_plan_of_symbolic_sizes_holds_for_all_of_them(tmp_path):
    def symbolic(rows, **options):
        x = torch.empty(rows, WIDTH)
        torch._dynamo.mark_dynamic(x, 0)
        return memgraph.plan(Model(), x, options={"budget": None, **options})

    path = tmp_path / "plan.json"
    made = symbolic(ROWS, budget=0.7)
    made.plan.save(path)
    assert any("s0" in line.value for line in made.plan.graphs[0].identity.lines)
    found = symbolic(ROWS // 2, plan=path)
    assert found.plan.graphs[0].plan.saved == made.plan.graphs[0].plan.saved
    assert found.plan.graphs[0].plan.backward == made.plan.graphs[0].plan.backward
    with pytest.raises(memgraph.PlanError, match=r"input is size s0; this graph's is \[2048, 64\]"):
        planned(plan=path)


@torch.compiler.nested_compile_region
def region(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ weight).exp()


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = region(x, weight)
        return x.square().mean()


def test_nested_regions_are_in_the_file(tmp_path):
    path = tmp_path / "plan.json"
    with torch.device("meta"):
        model = Nested()
    made = planned(model=model)
    assert len(made.plan.graphs) > 1
    made.plan.save(path)
    found = planned(model=model, plan=path)
    assert [graph.plan for graph in found.plan.graphs] == [graph.plan for graph in made.plan.graphs]


# --- the option -------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    made = planned(tile={"mlp": False}, rules={"layers.0": "save"})
    made.plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_the_options_of_a_plan_come_with_it(path):
    found = parse_options({"plan": str(path)})
    assert found.budget is None and found.tile is not None and found.tile.mlp is False
    assert found.rules == parse_options({"rules": {"layers.0": "save"}}).rules
    again = parse_options({"plan": path, "budget": "1GiB", "rules": {"layers.0": "save"}, "tile": {"mlp": False}})
    assert again.budget == 2**30 and again.plan == found.plan
    assert hash(found) == hash(parse_options({"plan": str(path)}))
    for name, value in (("rules", {}), ("tile", True), ("recompute", False), ("retain_graph", True)):
        with pytest.raises(memgraph.OptionsError, match=f"option '{name}' cannot be .* the plan was made with"):
            parse_options({"plan": path, name: value})
    with pytest.raises(memgraph.OptionsError, match="option 'budgt' .*did you mean 'budget'"):
        parse_options({"plan": path, "budgt": 1})


def test_a_plan_is_in_the_keys_by_its_content(path, tmp_path):
    elsewhere = tmp_path / "elsewhere.json"
    shutil.copy(path, elsewhere)
    key = parse_options({"plan": path}).key()
    assert str(path) not in key and parse_options({"plan": elsewhere}).key() == key
    assert key != parse_options({"tile": {"mlp": False}, "rules": {"layers.0": "save"}, "budget": None}).key()
    data = json.loads(path.read_text())
    data["graphs"][0]["plan"]["saved"].pop()
    path.write_text(json.dumps(data))
    assert parse_options({"plan": path}).key() != key


def test_a_plan_that_needs_a_tier_says_so(tmp_path):
    made = planned(offload={"host": True, "min_bytes": 0}, rules={"layers.*.up": "offload:host"}).plan
    path = tmp_path / "plan.json"
    made.save(path)
    assert parse_options({"plan": path}).offload.host is True
    with pytest.raises(memgraph.OptionsError, match="allowed with option 'offload' such as"):
        parse_options({"plan": path, "offload": False})
    (graph,) = made.graphs
    moved = tuple(dataclasses.replace(transfer, tier="nvme") for transfer in graph.plan.transfers)
    there = dataclasses.replace(graph, plan=dataclasses.replace(graph.plan, transfers=moved))
    dataclasses.replace(made, graphs=(there,)).save(path)
    with pytest.raises(memgraph.OptionsError, match="the plan sends values to the nvme tier, and there is none"):
        parse_options({"plan": path})
    found = parse_options({"plan": path, "offload": {"host": True, "nvme": str(tmp_path)}})
    assert found.offload.nvme.path == str(tmp_path)


def test_rules_that_send_values_to_the_disk_come_with_the_plan(tmp_path):
    rules = {"layers.*.up": "offload:nvme"}
    made = planned(offload={"nvme": str(tmp_path)}, rules=rules)
    assert any(d.action == Offload("nvme") for d in made.decisions)
    path = tmp_path / "plan.json"
    made.plan.save(path)
    assert str(tmp_path) not in path.read_text()
    with pytest.raises(memgraph.OptionsError, match="has nowhere to go; allowed with option 'offload' such as"):
        parse_options({"plan": path})
    for given in ({}, {"rules": rules}):
        found = parse_options({"plan": path, "offload": {"nvme": str(tmp_path)}, **given})
        assert found.offload.nvme.path == str(tmp_path) and len(found.rules) == 1
    again = planned(plan=path, offload={"nvme": str(tmp_path)})
    assert again.plan.graphs[0].plan.transfers == made.plan.graphs[0].plan.transfers


@pytest.mark.parametrize("value", [3, True, "", ["plan.json"]], ids=repr)
def test_what_is_no_file_is_refused(value):
    with pytest.raises(memgraph.OptionsError, match="option 'plan' cannot be .*allowed: None, or a file"):
        parse_options({"plan": value})


def test_a_file_without_a_plan_is_refused_before_anything_is_compiled(tmp_path):
    path = tmp_path / "plan.json"
    for text, told in (("{}", "it is no plan of memgraph's"), ("{", "it is no JSON"), (None, "there is no such file")):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(memgraph.OptionsError, match=f"option 'plan': .*plan.json: {told}"):
            torch.compile(torch.exp, backend="memgraph", options={"plan": str(path)})(torch.ones(2, requires_grad=True))


def test_a_search_for_a_size_takes_no_plan(path):
    with pytest.raises(memgraph.OptionsError, match="a plan of one size"):
        memgraph.longest(Model(), torch.empty(ROWS, WIDTH), dim=0, options={"plan": path, "budget": "1GiB"})
