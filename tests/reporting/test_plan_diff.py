"""Two plans side by side, on one screen."""

import dataclasses

from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.facts.identity import Identity, Line
from memgraph.planner.decisions import Decision, Plan
from memgraph.planner.step_plan import GraphPlan, StepPlan
from memgraph.reporting.plan_diff import Change, diff

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
