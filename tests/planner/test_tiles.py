"""How many shards: the search with plain numbers, and what a plan with tiles reports. Nothing is compiled."""

from __future__ import annotations

import functools

import pytest
import torch

import memgraph
from memgraph import BudgetError, OptionsError
from memgraph.base import compat
from memgraph.facts.actions import Rule, Tile
from memgraph.planner.tiles import (
    LEAST_ROWS,
    LEAST_SHARE,
    Group,
    fastest_shards,
    keys_of_shards,
    most_shards,
    next_shards,
    starting_shards,
)
from tests.support.lanes import slow_but
from tests.support.models import Loss

# --- the search -------------------------------------------------------------------------------------------

MLP = Group("mlp", "layers.0.mlp", 4096, (0, 1), most=32)
LOSS = Group("loss", "lm_head", 4096, (2,), most=16)
FIXED = Group("loss", "lm_head", 4096, (2,), most=16, fixed=4, origin=Rule("lm_head", Tile(4)))


def test_nothing_is_tiled_before_anything_is_chosen():
    assert starting_shards([MLP, LOSS]) == (1, 1)
    assert starting_shards([MLP, FIXED]) == (1, 4)
    assert starting_shards([]) == ()


WINDOW = Group("attention", "layers.0.self_attn", 4096, (0,), most=32, least=16)


def test_attention_with_a_window_begins_in_shards():
    assert starting_shards([MLP, WINDOW]) == (1, 16)
    assert next_shards([MLP, WINDOW], (1, 16), {1: 500}, peak=1000, limit=600) == (1, 32)


@pytest.mark.parametrize(
    ("tokens", "before", "after", "shards"),
    [
        (4000, 511, 0, 16),  # half a window each
        (4000, 0, 511, 16),
        (4000, 255, 256, 16),
        (4000, 999, 0, 8),
        (4000, 99, 0, 32),  # a shard keeps 128 rows
        (4000, 1999, 0, 4),
        (4000, 2000, 0, 1),  # three quarters of all pairs would be left
        (128, 15, 0, 1),
        (4000, 3999, 0, 1),
        (4096, 4095, 0, 4),  # all keys on one side
        (4096, 0, 4095, 4),
        (4096, 3000, 1024, 4),
        (4096, 3000, 1025, 1),
    ],
)
def test_shards_where_no_query_reads_all_keys(tokens, before, after, shards):
    assert fastest_shards(tokens, before, after, "cpu") == shards


@pytest.mark.parametrize(
    ("rows", "before", "after", "multiple", "keys"),
    [
        ([32] * 4, 16, 0, 1, (48,) * 4),  # of a window as many as the one that reads most
        ([32] * 4, 16, 16, 1, (64,) * 4),
        ([30] * 4, 16, 0, 1, (56,) * 4),  # 46 are read; 64 are left out of 120, whole vectors of 16
        ([32] * 4, 127, 0, 1, (32, 64, 96, 128)),  # of few lengths where that saves pairs
        ([128] * 8, 1023, 0, 1, (256, 256, 512, 512, 768, 768, 1024, 1024)),
        ([64] * 4, 20, 0, 64, (128,) * 4),  # whole blocks of 64
        ([20, 20], 29, 0, 1, (24, 40)),
        ([20, 20], 29, 39, 1, ()),  # as many as there are
        ([32] * 4, 127, 127, 1, ()),
    ],
)
def test_how_many_keys_each_shard_is_given(rows, before, after, multiple, keys):
    assert keys_of_shards(rows, before, after, multiple) == keys


def test_shards_of_a_card_are_longer():
    assert fastest_shards(4096, 511, 0, "cuda") == 4
    assert fastest_shards(2048, 511, 0, "cuda") == 2
    assert fastest_shards(4095, 4094, 0, "cuda") == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_shard_keeps_a_least_number_of_rows(device):
    least = LEAST_ROWS[device]
    assert [most_shards(tokens, device) for tokens in (1, least, 2 * least - 1, 7 * least)] == [1, 1, 1, 7]


def test_what_holds_most_of_the_peak_is_tiled():
    assert next_shards([MLP, LOSS], (1, 1), {0: 300, 1: 500}, peak=1000, limit=900) == (1, 2)
    assert next_shards([MLP, LOSS], (1, 1), {0: 500, 1: 300}, peak=1000, limit=900) == (2, 1)


@pytest.mark.parametrize(
    ("limit", "shards"),
    [
        (1000, 2),  # all that there is fits into what is left, and one step is taken anyway
        (800, 2),  # 500 bytes have to become 300: half of them are enough
        (700, 4),  # 200 are left: a third, but shards come in powers of 2
        (620, 8),  # 120
        (510, 8),  # 10: not more than eight times as many at once
        (500, 8),  # none
        (100, 8),
    ],
)
def test_shards_bring_what_stands_into_the_room_that_is_left(limit, shards):
    assert next_shards([MLP], (1,), {0: 500}, peak=1000, limit=limit) == (shards,)
    assert next_shards([MLP], (2,), {0: 500}, peak=1000, limit=limit) == (2 * shards,)


def test_no_more_than_the_most():
    assert next_shards([MLP], (16,), {0: 500}, peak=1000, limit=100) == (32,)
    assert next_shards([MLP], (32,), {0: 500}, peak=1000, limit=100) is None
    assert next_shards([MLP, LOSS], (32, 1), {0: 500, 1: 100}, peak=1000, limit=100) == (32, 8)


def test_what_a_rule_asks_for_stays():
    assert next_shards([FIXED], (4,), {0: 900}, peak=1000, limit=100) is None
    assert next_shards([MLP, FIXED], (1, 4), {0: 100, 1: 900}, peak=1000, limit=950) == (2, 4)


def test_what_holds_little_of_the_peak_stays():
    little = int(1000 * LEAST_SHARE)
    assert next_shards([MLP], (1,), {0: little - 1}, peak=1000, limit=900) is None
    assert next_shards([MLP], (1,), {0: little}, peak=1000, limit=900) is not None
    assert next_shards([MLP], (1,), {}, peak=1000, limit=900) is None
    assert next_shards([], (), {}, peak=1000, limit=900) is None


# --- a plan -----------------------------------------------------------------------------------------------


@functools.cache
def llama():
    """Wide enough, in its MLPs and at its head, that these make the peak."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4, vocab_size=2048,
        max_position_embeddings=512, use_cache=False, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        ids = torch.empty(2, 512, dtype=torch.int64)
        return Loss(transformers.LlamaForCausalLM(config)), {"input_ids": ids, "labels": ids}


def plan(**options):
    model, inputs = llama()
    return memgraph.plan(model, **inputs, options=options, device="cpu")


def tiles(report) -> dict[str, int]:
    return {
        decision.module: decision.action.shards for decision in report.decisions if isinstance(decision.action, Tile)
    }


LAYERS = ["model.model.layers.0.mlp", "model.model.layers.1.mlp"]


@pytest.mark.parametrize("budget", slow_but([None, 1.0], fast=[None]))
def test_no_tiles_where_the_budget_is_loose(budget):
    report = plan(budget=budget, tile=True)
    assert tiles(report) == {} and report.refusals == ()
    assert report.predicted_peak == report.unplanned_peak and report.predicted_time == report.unplanned_time


@pytest.mark.slow
def test_tiles_where_nothing_else_fits():
    with pytest.raises(BudgetError):
        plan(budget=0.4)
    report = plan(budget=0.4, tile=True)
    assert report.predicted_peak <= report.budget
    found = tiles(report)
    assert set(LAYERS) <= set(found) and len(set(found[name] for name in LAYERS)) == 1  # equal ones alike
    assert all(count >= 2 for count in found.values())
    assert {decision.why for decision in report.decisions if isinstance(decision.action, Tile)} == {
        "its values make the peak"
    }
    assert all(decision.bytes > 0 for decision in report.decisions if isinstance(decision.action, Tile))
    assert type(report).from_json(report.to_json()) == report
    assert "model.model.layers.0..1.mlp" in report.details()


@pytest.mark.skipif(not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU")
def test_on_cuda_a_tiled_loss_is_no_slower_than_the_whole_one():
    """Its gradient is made once, in the forward; the sums in float32 cost traffic, and no slower products."""
    with torch.device("meta"):
        head = torch.nn.Linear(4096, 1 << 16, bias=False).bfloat16()
        x, labels = torch.empty(8192, 4096, dtype=torch.bfloat16), torch.empty(8192, dtype=torch.int64)

    def loss(x, labels):
        return torch.nn.functional.cross_entropy(head(x).float(), labels)

    options = {"budget": None, "tile": {"loss": 4}, "verify": False}
    report = memgraph.plan(loss, x, labels, options=options, hardware="H100")
    assert list(tiles(report).values()) == [4]
    assert report.predicted_time < 1.05 * report.unplanned_time


@pytest.mark.slow
def test_a_number_of_shards_for_a_kind():
    report = plan(budget=None, tile={"mlp": 4, "loss": False})
    assert tiles(report) == dict.fromkeys(LAYERS, 4)
    assert {d.why for d in report.decisions if isinstance(d.action, Tile)} == {"option 'tile': {'mlp': 4}"}
    assert report.predicted_peak < report.unplanned_peak
    assert report.predicted_time > report.unplanned_time  # the forward runs again


@pytest.mark.slow
def test_rules():
    report = plan(budget=None, rules={"*.lm_head": "tile:3", "lm_head": "tile:5"})
    assert tiles(report) == {"model.lm_head": 3}
    assert [d.why for d in report.decisions if isinstance(d.action, Tile)] == ["rule '*.lm_head'"]
    (refusal,) = report.refusals
    assert refusal.what == "rule 'lm_head': 'tile:5'" and refusal.reason == "no region that can be tiled matches it"


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tile": {"mlp": 1}}, ["'tile.mlp'", "1", '"auto", False, or a number of shards from 2 on']),
        ({"tile": {"mlp": True}}, ["'tile.mlp'", "True"]),
        ({"tile": {"loss": "many"}}, ["'tile.loss'", "'many'", '"auto"']),
        ({"tile": {"los": 2}}, ["'tile.los'", "did you mean 'loss'", "'mlp', 'loss'"]),
        ({"tile": {"accumulate": "bfloat16"}}, ["'tile.accumulate'", '"float32"']),
        ({"tile": {"logits": "lose"}}, ["'tile.logits'", '"keep", "drop"']),
        ({"tile": 8}, ["'tile'", "8", '{"mlp": "auto", "loss": 16}']),
        ({"rules": {"x": "tile:0"}}, ["'rules'", "'tile:0' of 'x'", "'tile', 'tile:16'"]),
        ({"rules": {"x": "tile:1"}}, ["'tile:1' of 'x'"]),
        ({"rules": {"x": "tile:many"}}, ["'tile:many' of 'x'"]),
    ],
)
def test_refused_options(options, words):
    with pytest.raises(OptionsError) as error:
        memgraph.plan(torch.nn.Linear(2, 2), torch.ones(2, 2), options=options)
    assert all(word in str(error.value) for word in words)
