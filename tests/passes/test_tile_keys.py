"""Attention in shards that are given a part of the keys: what the graphs look like, and what they compute."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memgraph.facts.actions import Tile
from memgraph.facts.masks.reach import ALL, Reach
from memgraph.facts.tokens.region import TokenRegion
from memgraph.passes.tiles.body import sizes, symbolic_sizes
from memgraph.passes.tiles.keys import with_keys
from memgraph.planner.tiles import LENGTHS, WORTH_BODIES, keys_at_any_length
from tests.support import card_kernels
from tests.support.attention import CLOSE, WIDTH, Attention, Joint, joint_of, packed, padded, positions, window
from tests.support.card_kernels import cudnn, efficient
from tests.support.harness import Eager
from tests.support.lanes import slow_but
from tests.support.printer import text
from tests.support.splits import calls
from tests.support.tiles import distance, in_shards, largest_error

LENGTH = 96
SHARDS = (2, 3, 5, 7)


@functools.cache
def windowed() -> Joint:
    torch.manual_seed(0)
    return joint_of(Attention(window(9)), length=64)


def keys_of(tiled: torch.fx.GraphModule) -> list[list[int]]:
    """By tile, how many keys the attention of each of its bodies has."""
    found = []
    for tile in (tiled.tile_0, tiled.tile_1):
        bodies = [part for name, part in tile.named_children() if name.startswith("body")]
        nodes = [node for body in bodies for node in body.graph.nodes if "attention" in str(node.target)]
        found.append([node.args[2 if "backward" in str(node.target) else 1].meta["val"].shape[2] for node in nodes])
    return found


# --- which keys -------------------------------------------------------------------------------------------


def shares(tokens: int, shards: int, reach: Reach, multiple: int = 1) -> list[tuple[int, int, int]]:
    """Of each shard, its first query, its first key and the key that it ends before."""
    region = TokenRegion("attention", "", tokens, (), (), (), (), {}, 0, 0, multiple=multiple, reach=reach)
    found, first = [], 0
    for shard in with_keys(sizes(tokens, shards, multiple), region, in_shards(region, shards).keys):
        found.append((first, shard.start, shard.start + tokens - shard.left_out))
        first += shard.rows
    return found


def test_keys_of_windows():
    assert shares(128, 4, Reach(16, 0)) == [(0, 0, 48), (32, 16, 64), (64, 48, 96), (96, 80, 128)]
    assert shares(128, 4, Reach(16, 16)) == [(0, 0, 64), (32, 16, 80), (64, 48, 112), (96, 64, 128)]


def test_keys_of_causal_masks():
    """Of few lengths: each of them is a body."""
    assert shares(128, 4, Reach(127, 0)) == [(0, 0, 32), (32, 0, 64), (64, 0, 96), (96, 0, 128)]
    assert [end for *_, end in shares(1024, 8, Reach(1023, 0))] == [256, 256, 512, 512, 768, 768, 1024, 1024]


@given(st.integers(1, 600), st.integers(1, 40), st.integers(0, 700), st.integers(0, 700), st.sampled_from([1, 32, 64]))
def test_no_key_is_missing_and_lengths_are_few(tokens, shards, before, after, multiple):
    reach = Reach(min(before, tokens - 1), min(after, tokens - 1))
    found = shares(tokens, shards, reach, multiple)
    ends = [first for first, *_ in found[1:]] + [tokens]
    for (first, start, stop), end in zip(found, ends, strict=True):
        assert 0 <= start <= max(0, first - reach.before) and min(tokens, end + reach.after) <= stop <= tokens
    lengths = {stop - start for _, start, stop in found}
    assert len(lengths) <= LENGTHS
    # A row of a shard's mask begins where one of the whole would, as far as vectors of 16 entries go.
    assert all((tokens - length) % max(16, multiple) == 0 for length in lengths)
    pairs = sum((end - first) * (stop - start) for (first, start, stop), end in zip(found, ends, strict=True))
    if len(lengths) > 1:
        assert pairs <= (WORTH_BODIES * max(lengths) + 64) * tokens


@given(
    st.integers(1, 40),
    st.sampled_from([1, 32, 64]),
    st.integers(0, 3000),
    st.one_of(st.just(ALL), st.integers(0, 700)),
    st.one_of(st.just(ALL), st.integers(0, 700)),
)
def test_no_key_is_missing_at_any_length(shards, multiple, more, before, after):
    """The expressions of a length that is a symbol, for lengths at which each shard but the last has whole blocks."""
    tokens = shards * multiple + more
    counts = symbolic_sizes(tokens, shards, multiple)
    assert sum(counts) == tokens and not any(count % multiple for count in counts[:-1])
    assert min(counts) >= tokens // (shards * multiple) * multiple > 0
    if shards & (shards - 1) == 0:  # no shard is longer than the others by more than a block, or what is left over
        assert max(counts) - min(counts) <= max(multiple, shards - 1)
    region = TokenRegion("attention", "", tokens, (), (), (), (), {}, 0, 0, reach=Reach(before, after))
    lengths = keys_at_any_length(counts, before, after, multiple)
    assert len(set(lengths)) <= LENGTHS and all((tokens - n) % max(16, multiple) == 0 for n in lengths)
    first = 0
    for shard in with_keys(counts, region, lengths):
        end = first + shard.rows
        stop = shard.start + tokens - shard.left_out
        assert 0 <= shard.start <= max(0, first - before) and min(tokens, end + after) <= stop <= tokens
        first = end


# --- what it looks like -----------------------------------------------------------------------------------


def test_keys_and_what_is_made_of_them_are_cut():
    """All else is as with all keys (test_tile_attention.py)."""
    lines = text(windowed().tiled(2).tile_0).splitlines()
    made = [line.partition(" = ")[2] for line in lines]
    assert [call for call in made if call.startswith(("aten.slice", "memgraph.shard_keys"))] == [
        "aten.slice.Tensor(unsqueeze, 0, 0, 32)",
        "memgraph.shard_keys.default(unsqueeze_1, 1, 0, 48)",
        "aten.slice.Tensor(permute_1, 2, 0, 32)",
        "memgraph.shard_keys.default(permute_3, 2, 0, 48)",
        "memgraph.shard_keys.default(permute_5, 2, 0, 48)",
        "aten.slice.Tensor(unsqueeze, 0, 32, 64)",
        "memgraph.shard_keys.default(unsqueeze_1, 1, 16, 48)",
        "aten.slice.Tensor(permute_1, 2, 32, 64)",
        "memgraph.shard_keys.default(permute_3, 2, 16, 48)",
        "memgraph.shard_keys.default(permute_5, 2, 16, 48)",
    ]
    assert [call.args[1] for call in calls(windowed().tiled(2).tile_0, "invoke_subgraph")] == ["body_0"] * 2


def test_gradients_of_keys_are_added_where_the_keys_are():
    tiled = windowed().tiled(2).tile_1
    lines = text(tiled).splitlines()
    assert [line for line in lines if "sum" in line or "total" in line] == [
        "shard_total_default = memgraph.shard_total.default(permute_default_1, 1, 0, 64)",
        "shard_total_default_1 = memgraph.shard_total.default(permute_default_2, 1, 0, 64)",
        "shard_sum_default = memgraph.shard_sum.default(shard_total_default, permute_default_4, 1, 16)",
        "shard_sum_default_1 = memgraph.shard_sum.default(shard_total_default_1, permute_default_5, 1, 16)",
        "permute_default_7 = aten.permute.default(shard_sum_default, [0, 2, 1, 3])",
        "permute_default_8 = aten.permute.default(shard_sum_default_1, [0, 2, 1, 3])",
    ]


def test_shards_of_a_causal_mask_run_bodies_of_few_lengths():
    real = torch.ones(2, 256, dtype=torch.int64)
    joint = joint_of(Attention(padded), real, length=256)
    assert keys_of(joint.tiled(4)) == [[64, 128, 192, 256]] * 2
    assert keys_of(joint.tiled(16)) == [[64, 128, 192, 256]] * 2
    assert len(calls(joint.tiled(16).tile_0, "invoke_subgraph")) == 16


def test_a_window_that_is_too_long_to_leave_out_keys():

    def mask(x):
        query, key = positions(x)
        return query - key < 30

    joint = joint_of(Attention(mask), length=40)
    assert joint.regions[0].reach == Reach(29, 39)
    tiled = joint.tiled(2)
    assert keys_of(tiled) == [[40], [40]]
    assert all(len(node.args) == 2 for node in calls(tiled.tile_1, "memgraph.shard_sum"))


def joined(x):
    """For the second half of the keys the positions of the first are looked at."""
    query, key = positions(x)
    half = (key[:, : x.shape[1] // 2] <= query) & (query - key[:, : x.shape[1] // 2] < 9)
    return torch.cat([half, ~half], -1)


def from_a_table(x, table):
    """Which pairs are read is picked by two positions, beside a window."""
    query, key = positions(x)
    return (table[query % 7, key % 7] > 0) & (key <= query) & (query - key < 9)


def moved_on(x):
    """The keys are two places further on than the positions that are compared."""
    query, key = positions(x)
    return torch.nn.functional.pad((key <= query) & (query - key < 9), (2, 0), value=False)[:, :-2]


@pytest.mark.parametrize("mask, more", [(joined, ()), (from_a_table, (torch.ones(7, 7),)), (moved_on, ())])
def test_masks_that_need_all_keys(mask, more):
    """Operators whose keys are not those at the same places of what they read."""
    joint = joint_of(Attention(mask), *more, length=64)
    assert [region.reach for region in joint.regions] == [None] and keys_of(joint.tiled(2)) == [[64], [64]]
    assert largest_error(joint, (2,)) < CLOSE


# --- what it computes -------------------------------------------------------------------------------------


def sides(x):
    """Two keys before, three after."""
    query, key = positions(x)
    return (key >= query - 2) & (key <= query + 3)


def in_window(mask):
    def made(x, *more):
        return mask(x, *more) & window(11)(x)

    return made


def numbers():
    return torch.randint(0, 2, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def documents():
    return (torch.arange(LENGTH) // 7).repeat(2, 1)


MASKS = {
    "window": (window(11), None),
    "window of two": (window(2), None),
    "both sides": (sides, None),
    "causal padding": (padded, numbers),
    "padding in a window": (in_window(padded), numbers),
    "packing in a window": (in_window(packed), documents),
}


@pytest.mark.parametrize("name", slow_but(MASKS, fast={"window", "padding in a window"}))
def test_it_computes_the_same(name):
    mask, more = MASKS[name]
    joint = joint_of(Attention(mask, layers=2), *([more()] if more else []), length=LENGTH)
    assert min(itertools.chain(*keys_of(joint.tiled(5)))) < LENGTH
    assert largest_error(joint, SHARDS) < CLOSE


@pytest.mark.parametrize("groups", [1, 2])
def test_heads_that_share_keys(groups):
    joint = joint_of(Attention(window(11), layers=2, groups=groups, scale=0.3), length=LENGTH)
    assert largest_error(joint, SHARDS) < CLOSE


def test_bfloat16_is_as_good_as_whole():
    """Against float32, in any gradient; the sums over shards are in float32."""
    torch.manual_seed(0)
    exact = joint_of(Attention(window(40)), length=200, dtype=torch.float32)
    torch.manual_seed(0)
    short = joint_of(Attention(window(40)), length=200, dtype=torch.bfloat16)
    data = tuple(item.float() if item.is_floating_point() else item for item in short.data)
    truth = Joint(exact.graph, data).run(exact.graph)
    tiled = short.tiled(7)
    assert keys_of(tiled)[0][0] < 200
    whole, apart = (distance(truth, [item.float() for item in short.run(graph)]) for graph in (short.graph, tiled))
    assert 0 < apart < 1.1 * whole


@pytest.mark.parametrize("kernel", [efficient, cudnn])
@pytest.mark.parametrize("length", slow_but([250, 256], fast={250}))
def test_kernels_of_a_card(kernel, length):
    """Rows of a mask that begin on eight entries do so in a shard, too."""
    with card_kernels.on_the_cpu():
        joint = joint_of(Attention(window(40), attend=kernel), length=length, dtype=torch.float32)
        assert largest_error(joint, (2, 4)) < 2e-6
        tiled = joint.tiled(4)
        assert max(itertools.chain(*keys_of(tiled))) < length
        biases = [node for node in tiled.tile_0.body_0.graph.nodes if "pad" in node.name or "slice" in node.name]
        for node in biases:
            assert node.meta["val"].stride(-2) % 8 == 0


# --- plans ------------------------------------------------------------------------------------------------


def planned(model: torch.nn.Module, *inputs: torch.Tensor, **options: object):
    runner = Eager(recompute=False, **options)
    torch._dynamo.reset()
    torch.compile(model, backend=runner)(*inputs).backward()
    return [p.grad for p in model.parameters()], runner.planned[-1]


def shards(plan) -> list[tuple[int, str]]:
    return [(d.action.shards, d.why) for d in plan.plan.decisions if isinstance(d.action, Tile)]


ALONE = {"mlp": False, "loss": False}


def test_windows_run_in_shards_without_a_budget():
    """They are faster so. A mask that is as large as the sequence stays whole."""
    model, x = Attention(window(100)), torch.randn(1, 1024, WIDTH)
    _, plan = planned(model, x, budget=None, tile={**ALONE, "attention": "auto"})
    assert [count for count, _ in shards(plan)] == [8]
    assert shards(plan)[0][1].endswith("each shard is given 240 of 1,024 keys")
    assert plan.seconds < 0.5 * plan.unplanned_seconds
    _, plan = planned(Attention(window(800)), x, budget=None, tile={**ALONE, "attention": "auto"})
    assert not shards(plan)


def test_a_reach_that_is_wrong_is_found_and_refused(monkeypatch):
    """The shards are given all keys then, and the report says so."""

    def shorter(mask):
        return Reach(16, 0)  # a query reads 40

    monkeypatch.setattr("memgraph.facts.masks.reach.reach_of", shorter)
    torch.manual_seed(0)
    model, x = Attention(window(41)), torch.randn(1, 256, WIDTH)
    want = torch.autograd.grad(model(x), list(model.parameters()))
    got, plan = planned(model, x, budget=None, tile={**ALONE, "attention": 4})
    assert distance(want, got) < 1e-5
    assert [count for count, _ in shards(plan)] == [4] and "keys" not in shards(plan)[0][1]
    (refusal,) = (r for r in plan.refusals if "keys" in r.what)
    assert refusal.reason.startswith("each shard is given all of them: ") and "differs from the whole" in refusal.reason


@pytest.mark.parametrize("loss, refused", [("auto", True), (False, False)])
def test_what_nobody_asks_for_is_not_refused(loss, refused):

    def called(x):
        return model(x) + (x @ head).cumsum(1).relu().sum()

    model, head = Attention(window(41)), torch.randn(WIDTH, 8 * WIDTH, requires_grad=True)
    runner = Eager(recompute=False, budget=None, tile={"mlp": False, "loss": loss, "attention": 4})
    torch._dynamo.reset()
    torch.compile(called, backend=runner)(torch.randn(1, 256, WIDTH)).backward()
    (plan,) = runner.planned
    assert [refusal.reason.partition(" ")[0] for refusal in plan.refusals] == ["cumsum"] * refused


@pytest.mark.parametrize("dim", [0, 1])
def test_sizes_that_are_symbols(dim):
    """Batches of any size, and sequences of any length."""
    torch.manual_seed(0)
    model, x = Attention(window(41)), torch.randn(3, 256, WIDTH)
    runner = Eager(recompute=False, budget=None, tile={**ALONE, "attention": 4})
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=runner)
    torch._dynamo.mark_dynamic(x, dim)
    for batch in (x, x[:2] if dim == 0 else x[:, :200]):
        want = torch.autograd.grad(model(batch), list(model.parameters()))
        assert distance(want, torch.autograd.grad(compiled(batch), list(model.parameters()))) < 1e-5
    for plan in runner.planned:
        ((count, why),) = shards(plan)
        assert count == 4 and "keys" in why and not plan.refusals
        (decision,) = (d for d in plan.plan.decisions if isinstance(d.action, Tile))
        length = 256 if plan is runner.planned[0] else 200
        assert decision.bytes == length * length * 4  # of the mask, at the length of the capture
