"""Two plans side by side, on one screen."""

import dataclasses

import pytest

from memgraph.base.errors import PlanError
from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.facts.identity import Identity, Line
from memgraph.planner.decisions import Decision, Plan
from memgraph.planner.step_plan import GraphPlan, StepPlan
from memgraph.reporting import page, page_diff
from memgraph.reporting.differences import Change
from memgraph.reporting.plan_diff import diff
from tests.reporting.test_page import read
from tests.reporting.test_report import example
from tests.reporting.test_step_report import example as step_example

MIB = 1024**2


def line(name, operator="aten.mm.default"):
    return Line(name, operator, "[2, 2] float32", "[2, 1]", "(%0, %0)", "model")


def plan(decisions, *, peak=100 * MIB, seconds=0.5, lines=("a", "b"), graph="step [0]"):
    identity = Identity(tuple(map(line, lines)))
    own = GraphPlan(
        graph=graph, identity=identity, plan=Plan((), (), decisions=tuple(decisions)), peak=peak, seconds=seconds
    )
    return StepPlan(graphs=(own,), requested="0.5", budget=200 * MIB, device="cpu", hardware="test")


def layers(action, count=32):
    return [Decision(f"up_{i}", 2 * MIB, action, f"model.layers.{i}.mlp.up_proj") for i in range(count)]


def test_equal_layers_are_one_row_and_sums_are_side_by_side():
    first = plan([*layers(Save()), Decision("norm", MIB, Save(), "model.norm")])
    mixed = [*layers(Recompute())[:24], *layers(Offload("host"))[24:], Decision("norm", MIB, Save(), "model.norm")]
    second = plan(mixed, peak=60 * MIB, seconds=0.75)
    found = diff(first, second)
    assert found.changes == (
        Change("model.layers.0..23.mlp.up_proj", "save", "recompute", 24, 48 * MIB),
        Change("model.layers.24..31.mlp.up_proj", "save", "offload:host", 8, 16 * MIB),
    )
    assert (found.first.saved, found.second.saved) == (65 * MIB, MIB)
    assert (found.second.recomputed, found.second.offloaded) == (48 * MIB, 16 * MIB)
    text = str(found)
    assert "the second takes 40.0 MiB less at its peak and is 250.0 ms slower" in text
    assert "model.layers.0..23.mlp.up_proj" in text and "0.5 = 200.0 MiB on test" in text
    assert "model.norm" not in text


@pytest.mark.parametrize("first, second, note", [
    ("abc", "ac", ""), ("abc", "abc", ""), ("", "", ""),
    ("abcd", "axcbd", "runs in another order: b in the first plan, where c runs in the second"),
    ("abc", "", "runs in Inductor's order in the second plan alone"),
    ("", "abc", "runs in Inductor's order in the first plan alone"),
])  # fmt: skip
def test_plans_that_differ_in_the_order_of_the_forward_alone(first, second, note):
    def ordered(names):
        whole = plan(layers(Save()))
        own = dataclasses.replace(whole.graphs[0].plan, forward=tuple(names))
        return dataclasses.replace(whole, graphs=(dataclasses.replace(whole.graphs[0], plan=own),))

    found = diff(ordered(first), ordered(second))
    assert found.notes == ((f"the forward of step [0] {note}",) if note else ())
    assert found.same == (not note) and not found.changes


def test_what_one_plan_alone_decides_about():
    fused = Decision("x", MIB, Recompute(), "model.x", fused=True)
    tiled = Decision("x", 8 * MIB, Tile(4), "model.x")
    found = diff(plan([fused, tiled]), plan([]))
    assert {(c.was, c.becomes, c.bytes) for c in found.changes} == {
        ("recompute, fused", "not held", MIB),
        ("tile:4", "whole", 8 * MIB),
    }
    assert (found.first.tiled, found.second.tiled, found.first.recomputed) == (1, 0, 0)


def test_the_same_plan_differs_in_nothing():
    one = plan(layers(Save()))
    assert diff(one, one).same and "both plans decide the same" in str(diff(one, one))
    other = dataclasses.replace(one, graphs=(dataclasses.replace(one.graphs[0], peak=7, seconds=9.0),))
    assert diff(one, other).same  # what they take is measured or predicted, and no decision


def test_plans_of_other_graphs_say_so():
    found = diff(plan(layers(Save()), lines=("a", "b")), plan(layers(Recompute()), lines=("a", "c")))
    assert len(found.changes) == 1 and not found.same
    told = "the first plan's 2nd operator is aten.mm.default of [2, 2] float32 named 'b' in model; the second's is"
    assert told in found.notes[0]
    two = plan(layers(Save(), 1))
    both = dataclasses.replace(two, graphs=(*two.graphs, plan([], lines=("z",), graph="step [1]").graphs[0]))
    assert diff(both, two).notes == ("step [1] is in the first plan alone",)
    assert diff(two, both).notes == ("step [1] is in the second plan alone",)


def test_many_changes_stay_on_one_screen():
    first = plan(Decision(f"v{i}", MIB, Save(), f"module_{i}") for i in range(99))
    second = plan(Decision(f"v{i}", MIB, Recompute(), f"module_{i}") for i in range(99))
    text = str(diff(first, second))
    assert len(diff(first, second).changes) == 99 and "76 more" in text and len(text.splitlines()) <= 45


def reports():
    """Two reports of one graph of 32 layers, of which the second recomputes more."""
    first = dataclasses.replace(example(), plan=plan(layers(Save())))
    mixed = [*layers(Save())[:8], *layers(Recompute())[8:]]
    mixed = [dataclasses.replace(d, seconds=0.25) if isinstance(d.action, Recompute) else d for d in mixed]
    return first, dataclasses.replace(first, plan=plan(mixed, peak=60 * MIB, seconds=0.75))


def test_two_reports_make_a_page(tmp_path):
    first, second = reports()
    found = diff(first, second)
    assert found.changes == diff(first.plan, second.plan).changes
    found.html(tmp_path / "diff.html")
    data = read((tmp_path / "diff.html").read_text())
    assert [part["graph"] for part in data["parts"]] == ["loss_fn [0]", "loss_fn [0]"]
    view = data["views"][0]
    assert view["kind"] == "diff" and view["summary"] in str(found)
    shown = view["diff"]
    assert shown["curves"] == [["loss_fn [0]", 0, 1]] and shown["missing"] == []
    assert all(cell in str(found) for row in shown["sums"] for cell in row)
    (change,) = shown["changes"]
    assert (change["module"], change["bytes"]) == ("model.layers.8..31.mlp.up_proj", 48 * MIB)
    assert len(change["members"]) == 24
    assert change["members"][0] == ["up_8", "model.layers.8.mlp.up_proj", 2 * MIB, 0.0, 0.25]


def test_the_page_of_a_plan_file_has_tables_alone():
    first, second = reports()
    found = diff(first.plan, second)
    data = read(page.document(page_diff.views(found.reports, found.changes, ("a note",), (), "answer")))
    assert data["views"][0]["diff"]["missing"] == ["first"] and data["views"][0]["diff"]["curves"] == []
    assert len(data["parts"]) == 1 and data["views"][0]["diff"]["notes"] == ["a note"]


def test_graphs_of_two_steps_are_paired_by_name():
    first, second = reports()
    alone = dataclasses.replace(second, graph="alone [0]")
    found = diff(step_example(parts=(first, alone)), step_example(parts=(alone, second)))
    data = read(page.document(page_diff.views(found.reports, found.changes, found.notes, (), "answer")))
    assert data["views"][0]["diff"]["curves"] == [["loss_fn [0]", 0, 3], ["alone [0]", 1, 2]]


def test_a_report_without_a_plan_is_refused():
    with pytest.raises(PlanError, match="has no plan: its graph runs without one"):
        diff(example(), plan(layers(Save())))
