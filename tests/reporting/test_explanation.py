"""Why the values of a module are where they are."""

import dataclasses

import pytest

from memgraph.facts.actions import Recompute, Save, Tile
from memgraph.planner.decisions import Decision, Described, Event, Timeline
from tests.reporting.test_report import MIB, example

UP, DOWN = "model.layers.3.mlp.up_proj", "model.layers.3.mlp.down_proj"
MENU = (("save", 0.0), ("offload:host", 0.004))


@pytest.fixture
def report():
    decisions = (
        Decision("up", 8 * MIB, Recompute(), UP, "", 0.002, "dropped for the budget", alternatives=MENU),
        Decision(
            "down", 2 * MIB, Save(), DOWN, why="the backward reads it and it fits", alternatives=(("recompute", 0.1),)
        ),
        Decision("seeds", 8, Save(), "", why="must not be computed twice"),
        Decision("mlp", 32 * MIB, Tile(4), "model.layers.3.mlp", why="its values make the peak"),
    )
    events = (
        Event("forward", "forward.buf1", 2 * MIB),
        Event("forward", "forward.buf2", 50 * MIB),
        Event("forward", "forward.buf2", -50 * MIB),
        Event("backward", "grad", 60 * MIB),
        Event("backward", "grad", -60 * MIB),
    )
    described = (
        Described("up", "aten::mm", "float32", (64, 512), UP),
        Described("grad", "aten::mm", module="model.head"),
    )
    return dataclasses.replace(
        example(),
        decisions=decisions,
        described=described,
        timeline=Timeline(events),
        buffers=(("forward.buf1", "down"), ("forward.buf2", "other")),
    )


def test_a_module_with_all_of_its_values(report):
    found = report.explain("model.layers.3.mlp")
    assert [decision.name for decision in found.decisions] == ["mlp", "up", "down"]
    place = found.place
    assert (place.phase, place.event, place.events, place.value, place.module) == (
        "backward",
        4,
        5,
        "grad",
        "model.head",
    )
    assert place.standing == 2 * MIB and found.spare == report.budget - report.reserve - report.predicted_peak
    text = str(found)
    assert "1 in 4 shards (32.0 MiB), 1 dropped (8.0 MiB), 1 kept (2.0 MiB)" in text
    assert "in the backward, when grad of model.head is allocated (event 4 of 5)" in text
    assert "2.0 MiB of model.layers.3.mlp stands at that moment" in text
    (row,) = (row for row in text.splitlines() if row.startswith(" up "))
    for part in ("mm [64, 512] float32 in .up_proj", "2.0 ms", "save: 8.0 MiB; offload:host: 4.0 ms"):
        assert part in row
    assert "recompute: 100.0 ms" in text and "the budget of 200.0 MiB" in text and "28.0 MiB to spare" in text


def test_one_value_and_no_budget(report):
    found = dataclasses.replace(report, budget=None).explain("down")
    assert [decision.name for decision in found.decisions] == ["down"] and found.place.standing == 2 * MIB
    assert "no budget was asked for" in str(found)


def test_a_module_about_which_nothing_was_decided(report):
    assert "there was nothing to decide" in str(report.explain("model.head"))
    bare = dataclasses.replace(report, timeline=Timeline()).explain("model.head")
    assert bare.place is None and "peak  " not in str(bare)


@pytest.mark.parametrize(
    ("what", "near"),
    [("model.layer.3.mlp", "'model.layers.3.mlp'"), ("mlp.up_proj", f"'{UP}'"), ("qqqq", "there are 'model'")],
)
def test_an_unknown_name_is_refused_with_what_is_near(report, what, near):
    with pytest.raises(LookupError, match="no module and no value") as error:
        report.explain(what)
    assert near in str(error.value) and repr(what) in str(error.value)


def test_a_module_with_many_values_stays_on_one_screen(report):
    many = tuple(Decision(f"v{i}", MIB, Save(), f"{UP}.part{i}", why="it fits") for i in range(99))
    text = str(dataclasses.replace(report, decisions=many).explain("model"))
    assert "69 more" in text and len(text.splitlines()) <= 45
