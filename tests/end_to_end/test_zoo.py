"""The zoo of model families, a handful here: the smallest plans keep the gradients, and the trial sees what is wrong.

`MEMGRAPH_ZOO=all pytest tests/end_to_end/test_zoo.py` takes all families; `make zoo` trains them through Inductor.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from benchmarks import zoo_page
from memgraph.facts import kernel_scratch
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from tests.families import FAMILIES, Family, trial
from tests.support.harness import Eager
from tests.support.lanes import slow_but

HANDFUL = ("mixtral", "mamba2", "modernbert", "whisper", "wan", "recommender")
CHOSEN = FAMILIES if os.environ.get("MEMGRAPH_ZOO") == "all" else HANDFUL
# torch 2.13's own partitions of it, run node by node without Inductor, fail in a view.
NOT_NODE_BY_NODE = ("qwen3_next",)
NVME = Tiers((Tier("nvme", 1e9, 1e9),))


def step(family: Family, backend) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients of one step."""
    torch._dynamo.reset()
    module, inputs = family.make()
    torch.manual_seed(trial.SEED)
    with family.capturing():
        loss = torch.compile(module, backend=backend)(**inputs)
    loss.backward()
    named = module.named_parameters()
    return loss.item(), {name: p.grad.to_dense().double().numpy() for name, p in named if p.grad is not None}


def peaks(backend: Eager) -> int:
    """The peaks of all graphs that were planned, added up."""
    return sum(planned.plan.peak for planned in backend.planned)


@pytest.mark.parametrize("name", slow_but(CHOSEN, fast=["recommender"]))
def test_the_smallest_plan_of_a_family_keeps_its_gradients(name, tmp_path):
    family = FAMILIES[name]
    if family.missing:
        pytest.skip(f"{family.needs} is not installed")
    plain = Eager()
    if name in NOT_NODE_BY_NODE:
        pytest.skip("torch's own split does not run node by node")
    # Kernels are tried, as in the backend: the bound of a convolution's scratch alone would be a small model's peak.
    with kernel_scratch.looking_up(kernel_scratch.for_compilation(None, 0, cache=False)):
        loss, gradients = step(family, plain)
    levers = {"tile": True, "offload": {"nvme": str(tmp_path), "min_bytes": 1024, "verify": True}}
    everything = Eager(fraction=0.01, last=True, tiers=NVME, **levers)
    by_recompute = [Eager(fraction=0.01, last=True)] if name in ("recommender", "whisper") else []
    for backend in (*by_recompute, everything):
        with kernel_scratch.looking_up(kernel_scratch.for_compilation(None, 0, cache=False)):
            found, mine = step(family, backend)
        assert found == pytest.approx(loss, rel=1e-5)
        assert trial.difference(mine, gradients) <= family.tolerance
        assert len(backend.planned) == len(plain.planned)  # llava and wav2vec2 break into six graphs
        assert peaks(backend) < peaks(plain), "no lever was used: nothing was tested"


def test_a_minimum_that_is_refused_is_a_failure():
    assert trial.named_by_an_error({"refused": 900, "failure": ""})["failure"]
    assert trial.named_by_an_error({"measured": 900, "failure": ""})["failure"] == ""


def test_one_name_one_family():
    assert len(FAMILIES) >= 24
    for name, family in FAMILIES.items():
        assert family.name == name


def test_the_optimizer_has_its_state_and_the_weights_are_as_they_were():
    family = FAMILIES["recommender"]
    module, _ = family.make()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = trial.optimizer_of(family, module)
    assert all(set(optimizer.state[p]) >= {"exp_avg", "exp_avg_sq"} for p in module.parameters())
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_a_difference_is_relative_to_the_gradient_and_a_missing_one_is_infinite():
    wanted = {"weight": np.array([2.0, -4.0]), "bias": np.array([1e-9, 0.0])}
    assert trial.difference({"weight": np.array([2.0, -4.4]), "bias": wanted["bias"]}, wanted) == pytest.approx(0.1)
    # All but zero: measured by the largest gradient, so that rounding does not count as wrong.
    assert trial.difference({"weight": wanted["weight"], "bias": np.array([-1e-9, 0.0])}, wanted) < 1e-5
    assert trial.difference({"weight": wanted["weight"]}, wanted) == float("inf")


ROW = {
    "budget": 1500, "baseline": 500, "predicted": 1490, "above": 995, "measured": 1495, "graphs": 1,
    "losses": 1e-6, "gradients": 1e-6,
}  # fmt: skip


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, ""),
        ({"above": 1001, "predicted": 1501}, "1 bytes over the budget"),
        ({"above": 960}, "predicted 990, measured 960"),
        ({"graphs": 2, "measured": 1501}, "1 bytes over the budget"),
        ({"graphs": 2, "above": 960}, ""),
        ({"losses": float("nan")}, "losses differ"),
        ({"gradients": 2e-4}, "gradients differ"),
    ],
)
def test_a_row_tells_what_is_wrong_with_it(change, words):
    found = "; ".join(trial._breaches(ROW | change, FAMILIES["llama"]))
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.inductor
@pytest.mark.slow
def test_a_family_through_inductor_in_every_column():
    rows = list(trial.rows(FAMILIES["recommender"]))
    assert [row["failure"] for row in rows] == [""] * len(rows)
    accepted = [row for row in rows if "measured" in row]
    columns = {row["column"].split(":")[0] for row in accepted}
    assert "no budget" in columns and columns & {"60%", "35%"}  # two budgets with one minimum are run once
    assert min(row["above"] for row in accepted) < 0.9 * rows[0]["above"], "no budget changed anything"


def measured(**change):
    """What the driver hands to the page: plain Inductor, a budget that was kept, one that was refused."""
    kept = ROW | {"column": "60%", "graphs": 1, "planning": 2.0, "failure": "", "measured": 1495}
    rows = [
        {"column": "inductor", "above": 2000, "graphs": 1, "failure": ""},
        kept | change,
        {"column": "35%", "budget": 900, "refused": 1500, "why": ["tile: no stretch"], "failure": ""},
        kept | {"column": "35%: its minimum"},
    ]
    return {"family": "llama", "kind": "decoders", "rows": rows, "failure": ""}


@pytest.mark.parametrize("unfinished, budgets, wrong", [(True, [600, 700, 800, 350], 0), (False, [600, 700, 350], 1)])
def test_a_refusal_that_says_at_least_is_followed(unfinished, budgets, wrong, monkeypatch):
    """Graphs of the step were to come; what the last error names has to do."""
    minima = {600: 700, 700: 800, 350: 700}  # by budget that is refused, what the error names

    def row(family, column, options, reference):
        found = {"column": column, "budget": options["budget"], "failure": ""}
        refused = minima.get(found["budget"])
        if refused is None:
            return found | {"graphs": 2, "baseline": 0, "above": 900, "measured": 900}
        return found | {"refused": refused, "unfinished": unfinished, "why": []}

    monkeypatch.setattr(trial, "_train", lambda *_, **__: {"above": 1000, "graphs": 2, "seconds": 1, "losses": [1.0]})
    monkeypatch.setattr(trial, "_row", row)
    rows = [found for found in trial.rows(FAMILIES["llava"]) if "all levers" not in found["column"]][2:]
    assert [found["budget"] for found in rows] == budgets
    assert sum(bool(found["failure"]) for found in rows) == wrong
    minimum = {700: {"refused": 800}, 800: ROW | {"failure": ""}}
    assert zoo_page._cell({"refused": 700}, minimum) == "refused; 1 of 1"


def test_the_page_counts_what_is_right():
    text = zoo_page.page({"llama": measured()})
    assert "**1 of 1 families are right.** Of 2 accepted budgets 2 were kept" in text
    assert "| llama | 1 | 2 |  | 1 of 1 | refused; 1 of 1 |" in text
    assert "- tile: no stretch (llama)" in text


def test_a_step_of_several_graphs_is_held_against_what_its_budget_allows_that_step():
    """Not against what it leaves above the baseline of the widest graph, which begins in the middle of the step."""
    row = {"graphs": 2, "baseline": 900 * 1024, "above": 700 * 1024, "measured": 1000 * 1024, "budget": 1100 * 1024}
    assert (trial.level(row), trial.reached(row)) == (300 * 1024, 1000 * 1024)
    assert zoo_page._cell({"failure": ""} | row, {}) == "700 of 800"
    assert trial.level({**row, "graphs": 1}) == 900 * 1024


def test_the_page_says_what_is_wrong():
    broken = measured(above=1100, predicted=1600, failure="100 bytes over the budget")
    dead = {"family": "wan", "kind": "diffusion", "rows": [], "failure": "past the limit of 5 s"}
    text = zoo_page.page({"llama": broken, "wan": dead})
    assert "**0 of 2 families are right.** Of 2 accepted budgets 1 were kept" in text
    assert "- llama: 60%: 100 bytes over the budget" in text
    assert "- wan: past the limit of 5 s" in text


def test_a_family_that_was_cut_short_is_not_right():
    text = zoo_page.page({"llama": measured() | {"complete": False}})
    assert "**0 of 1 families are right.**" in text and "- llama: not finished: 3 columns, right so far" in text
