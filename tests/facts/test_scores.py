"""Attention that stands in the graph as operators: found, in shards of its queries, and exact."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import Tensor, nn

from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.scores import find_scores
from memgraph.facts.tokens.states import PARTIAL, REPLICATED, Sharded
from tests.support import tiles
from tests.support.attention import CLOSE, DTYPE, FEATURES, HEADS, WIDTH, window
from tests.support.lanes import slow_but

LENGTH, BATCH = 24, 2
FAR = 8  # distances that a learned bias tells apart


@dataclasses.dataclass(frozen=True)
class Joint(tiles.Joint):
    """A joint graph in which products of queries and keys are the regions."""

    @functools.cached_property
    def regions(self) -> tuple[TokenRegion, ...]:
        return find_scores(self.graph)[0]

    @functools.cached_property
    def refused(self) -> tuple[RefusedRegion, ...]:
        return find_scores(self.graph)[1]


class Composed(nn.Module):
    """Layers of attention without a kernel.

    bias: a learned number for each head and distance, which all layers share.  sinks: a learned score beside the keys.
    dropout: of the weights.  groups: heads of keys and values.  masked: whether a window hides keys.
    """

    def __init__(self, layers=1, *, bias=False, sinks=False, dropout=0.0, groups=HEADS, masked=True):
        super().__init__()
        self.dropout, self.masked = nn.Dropout(dropout), masked
        sides = (WIDTH, groups * FEATURES, groups * FEATURES, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, side, bias=False) for side in sides) for _ in range(layers)
        )
        self.bias = nn.Embedding(FAR, HEADS) if bias else None
        self.sinks = nn.Parameter(torch.randn(HEADS)) if sinks else None

    def forward(self, x: Tensor) -> Tensor:
        added = torch.zeros((), dtype=x.dtype)
        if self.masked:
            added = torch.where(window(5)(x), 0.0, float("-inf")).to(x.dtype)
        if self.bias is not None:
            places = torch.arange(x.shape[1])
            added = added + self.bias((places[:, None] - places).clamp(0, FAR - 1)).permute(2, 0, 1)[None]
        for query, key, value, out in self.layers:
            q, k, v = (project(x).unflatten(-1, (-1, FEATURES)).transpose(1, 2) for project in (query, key, value))
            k, v = (item.repeat_interleave(q.shape[1] // k.shape[1], 1) for item in (k, v))
            scores = q @ k.mT + added
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
                scores = scores - scores.max(-1, keepdim=True).values
            weights = self.dropout(scores.softmax(-1)[..., : x.shape[1]])
            x = x + out((weights @ v).transpose(1, 2).flatten(-2))
        return x.square().mean()


def joint_of(module: nn.Module, batch: int = BATCH) -> Joint:
    x = torch.randn(batch, LENGTH, WIDTH, dtype=DTYPE, generator=torch.Generator().manual_seed(1)).requires_grad_()
    made = tiles.joint_of(module, x, dtype=DTYPE)
    return Joint(made.graph, made.data)


def squares(joint: Joint, names) -> list[str]:
    """Of some values those with an entry for each query and key of each head of each sequence."""
    found = []
    for node in joint.graph.graph.nodes:
        value = node.meta.get("val")
        if node.name in set(names) and isinstance(value, Tensor) and value.numel() >= BATCH * HEADS * LENGTH**2:
            found.append(node.name)
    return found


def test_both_sides_are_one_region_and_nothing_large_crosses():
    joint = joint_of(Composed(layers=2))
    first, second = joint.regions
    assert (first.kind, first.tokens) == ("attention", LENGTH) and not joint.refused
    assert not squares(joint, (*first.inputs, *first.outputs, *second.inputs, *second.outputs))
    assert len(squares(joint, first.forward)) > 3 and len(squares(joint, first.backward)) > 3
    products = [name for name in first.outputs if "bmm" in name]
    assert [first.states[name] for name in products] == [Sharded((1,)), PARTIAL, PARTIAL, Sharded((1,))]


def test_with_sinks_and_dropout_no_square_crosses_but_the_masks_of_dropout():
    joint = joint_of(Composed(layers=2, sinks=True, dropout=0.2))
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    for region in joint.regions:
        large = squares(joint, (*region.inputs, *region.outputs))
        assert len(large) == 1 and nodes[large[0]].meta["val"].dtype == torch.bool
        assert len(squares(joint, region.backward)) > 3


def test_keys_are_whole_and_queries_in_shards():
    joint = joint_of(Composed())
    (region,) = joint.regions
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    scores = next(nodes[name] for name in region.forward if "bmm" in name)
    assert [region.states[read.name] for read in scores.args] == [Sharded((1,)), REPLICATED]


def test_the_rows_of_a_mask_are_made_by_each_shard():
    joint = joint_of(Composed(layers=2))
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    for region in joint.regions:
        assert all(nodes[name].meta["val"].shape[-2:] != (LENGTH, LENGTH) for name in region.inputs)
    assert set(joint.regions[0].forward) & set(joint.regions[1].forward)  # both make them


def bias_of(rows: int) -> tuple[Joint, TokenRegion, list]:
    """Attention with a learned bias, its first layer, and what that reads of the bias: its table, or all of it."""
    module = Composed(layers=2, bias=True)
    module.bias = nn.Embedding(rows, HEADS)
    joint = joint_of(module)
    region = joint.regions[0]
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    reads = [nodes[name] for name in region.inputs if region.states.get(name) in (REPLICATED, Sharded((2,)))]
    return (
        joint,
        region,
        [node for node in reads if node.meta["val"].shape in ((rows, HEADS), (1, HEADS, LENGTH, LENGTH))],
    )


def test_the_rows_of_a_learned_bias_are_made_by_each_shard():
    joint, region, (table,) = bias_of(FAR)
    assert table.op == "placeholder" and region.states[table.name] == REPLICATED
    made = {
        node.name for node in joint.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    }
    assert all(made <= set(layer.forward) for layer in joint.regions)  # each layer makes it for itself


def test_a_table_as_large_as_the_bias_is_not_read_by_each_shard():
    _, region, (bias,) = bias_of(LENGTH**2)
    assert bias.meta["val"].shape == (1, HEADS, LENGTH, LENGTH) and region.states[bias.name] == Sharded((2,))


@pytest.mark.parametrize("learned", [True, False])
def test_a_table_whose_rows_are_those_of_a_bias(learned):
    """A row of the table for each query, an entry of it for each key: it is as large as what is made of it, so that is
    cut. Where the table has a gradient, its rows are added up by shards, which look them up as well."""

    def biased(m, x):
        places = torch.arange(LENGTH) % 4
        scores = x @ m.both @ x.mT + nn.functional.embedding(places, m.table)
        return (scores.softmax(-1) @ x).square().mean()

    both, table = (nn.Parameter(torch.randn(*shape, dtype=DTYPE)) for shape in ((WIDTH, WIDTH), (4, LENGTH)))
    module = tiles.Of(biased, both=both, table=table.requires_grad_(learned))
    made = tiles.joint_of(module, tiles.floats(BATCH, LENGTH, WIDTH))
    (region,), refused = find_scores(made.graph)
    nodes = {node.name: node for node in made.graph.graph.nodes}
    looks = [name for name in region.forward if nodes[name].target is torch.ops.aten.embedding.default]
    sums = [name for name in region.outputs if tuple(nodes[name].meta["val"].shape) == (4, LENGTH)]
    assert not refused and len(looks) == learned
    assert [region.states[name] for name in sums] == [PARTIAL] * learned
    joint = Joint(made.graph, made.data)
    assert joint.error(3) < CLOSE


FOUND = {
    "a window": lambda: joint_of(Composed()),
    "no mask": lambda: joint_of(Composed(masked=False)),
    "several layers": lambda: joint_of(Composed(layers=3)),
    "sinks": lambda: joint_of(Composed(layers=2, sinks=True)),
    "dropout": lambda: joint_of(Composed(layers=2, dropout=0.3)),
    "grouped keys": lambda: joint_of(Composed(groups=1)),
    "a bias of all layers": lambda: joint_of(Composed(layers=3, bias=True)),
    "a bias, one sequence": lambda: joint_of(Composed(layers=3, bias=True), batch=1),
    "all of it": lambda: joint_of(Composed(layers=2, bias=True, sinks=True, dropout=0.2, groups=1)),
}


@pytest.mark.parametrize("name", slow_but(FOUND, fast={"a window", "sinks", "dropout"}))
def test_shards_give_what_the_whole_gives(name):
    joint = FOUND[name]()
    layers = {"several layers": 3, "a bias of all layers": 3, "a bias, one sequence": 3}
    two = {"sinks", "dropout", "all of it"}
    assert len(joint.regions) == layers.get(name, 2 if name in two else 1) and not joint.refused
    for shards in (2, 5):
        assert joint.error(shards) < CLOSE


def test_weights_times_rows_are_no_attention():
    """A batch of products whose right factors are parameters: experts that run on all tokens."""
    experts = nn.Parameter(torch.randn(2, WIDTH, 4 * WIDTH, dtype=DTYPE))
    module = tiles.Of(lambda m, x: (x @ m.experts).relu().square().mean(), experts=experts)
    x = tiles.floats(2, LENGTH, WIDTH)
    made = tiles.joint_of(module, x)
    weights = {
        node.name for node in made.graph.graph.find_nodes(op="placeholder") if node.meta["val"].shape == experts.shape
    }
    assert weights and not find_scores(made.graph, weights)[0]


def test_what_mixes_queries_is_refused_with_its_reason():
    def mixing(m, x):
        scores = m.q(x) @ m.k(x).mT
        return (scores.cumsum(1).softmax(-1) @ x).square().mean()

    module = tiles.Of(mixing, q=tiles.linear(WIDTH, FEATURES), k=tiles.linear(WIDTH, FEATURES))
    made = tiles.joint_of(module, tiles.floats(BATCH, LENGTH, WIDTH))
    regions, refused = find_scores(made.graph)
    assert not regions
    assert [item.reason for item in refused] == ["cumsum runs along the tokens"]
