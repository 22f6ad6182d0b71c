"""Actions, their spelling in the options, and the reasons that keep a value from being computed twice."""

import pytest

from memgraph.facts.actions import (
    SPELLINGS,
    CheckpointTag,
    Fixed,
    FixedKind,
    GraphItself,
    Offload,
    Recompute,
    RegionInput,
    Rule,
    Save,
    Tile,
    TileOption,
    parse_action,
)
from memgraph.planner.decisions import Decision


@pytest.mark.parametrize("action", [*SPELLINGS.values(), Tile(2), Tile(16)])
def test_an_action_is_read_as_it_is_spelt(action):
    assert parse_action(str(action)) == action


@pytest.mark.parametrize(
    "text", ["", "Save", "offload", "offload:", "offload:disk", "tile:", "tile:1", "tile:²", 3, None]
)
def test_other_texts_are_no_actions(text):
    assert parse_action(text) is None


def test_origins_are_told_apart_as_values():
    rule = Rule("*.mlp", Recompute())
    origins = {rule, Rule("*.mlp", Save()), RegionInput(rule), CheckpointTag(), GraphItself(), TileOption("mlp", 4)}
    assert len(origins) == 6 and Rule("*.mlp", Recompute()) in origins
    assert str(RegionInput(rule)) == "enters a region of rule '*.mlp'"
    assert rule.spelling == "rule '*.mlp': 'recompute'"


def test_only_what_does_something_runs_though_nothing_reads_it():
    assert {kind for kind in FixedKind if Fixed(kind, "").runs_unread} == {FixedKind.MUTATES, FixedKind.HAS_EFFECTS}


@pytest.mark.parametrize("action", [Save(), Recompute(), Offload("nvme"), Tile(8)])
def test_a_decision_survives_as_plain_data(action):
    decision = Decision("mm", 8, action, "layers.0", "model.py:3", 0.5, "a reason", fused=True)
    data = decision.to_dict()
    assert data["action"] == action.lever and Decision.from_dict(data) == decision
    with pytest.raises(TypeError):
        Decision.from_dict(data | {"colour": "red"})
    with pytest.raises(KeyError):
        Decision.from_dict(data | {"action": "forget"})
