"""Tiles of a symbolic number of tokens: one graph for all lengths, also those that no number of shards divides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_leaves

from memgraph.backend.options import parse_options
from memgraph.backend.tiling import Tiling
from memgraph.base import compat
from memgraph.base.errors import PlanError
from memgraph.facts.actions import Tile
from memgraph.facts.costs import logical_bytes
from memgraph.facts.plain import generic, names_of_symbols, shortest, with_plain_sizes
from memgraph.facts.tokens.attention import find_attention
from memgraph.facts.tokens.find import find_regions
from memgraph.passes import graphs
from memgraph.passes.tile import tile
from memgraph.passes.tiles import shards as tile_graph
from memgraph.planner.decisions import Decision
from memgraph.verify.tiles import TileError, verify_tiles
from tests.support import attention
from tests.support.splits import capture_inductor
from tests.support.tiles import WIDTH, Of, cross_entropy, distance, linear, loss, mlp

LENGTHS = (6, 2, 3, 5, 17)
SHARDS = (2, 3, 8)


@dataclasses.dataclass(frozen=True)
class Symbolic:
    """A joint graph whose batch and length are symbolic.  given: by length, what a run of it is given."""

    graph: torch.fx.GraphModule
    given: dict[int, list[object]]
    find: Callable[..., tuple] = find_regions

    @property
    def regions(self):
        return self.find(with_plain_sizes(self.graph, generic(names_of_symbols(self.graph))))[0]

    def tiled(self, shards: int, verified: bool = True):
        plan = graphs.TilePlan(tuple(graphs.Tiled(region, shards) for region in self.regions))
        found = tile(graphs.Joint(self.graph, 1), plan).graphs.module
        if verified:
            verify_tiles(self.graph, found, [(region, shards) for region in self.regions])
        return found

    def error(self, shards: int) -> float:
        """How far the tiled graph is from the whole one, in any output, at any length."""
        tiled = self.tiled(shards)
        return max(distance(run(self.graph, given), run(tiled, given)) for given in self.given.values())


def run(graph, given):
    with torch.no_grad():
        return tree_leaves(torch.fx.Interpreter(graph).run(*given))


def symbolic(module, *kinds: str, dtype: torch.dtype = torch.float64) -> Symbolic:
    """The joint graph of a module.  kinds: of its inputs, "floats" or "labels"."""

    def inputs(length: int) -> list[torch.Tensor]:
        draw = torch.Generator().manual_seed(length)
        x = torch.randn((3, length, WIDTH), dtype=dtype, generator=draw).requires_grad_()
        return [x if kind == "floats" else torch.randint(0, 24, (3, length), generator=draw) for kind in kinds]

    module = module.to(dtype)
    with torch._dynamo.config.patch(assume_static_by_default=False):
        split = capture_inductor(module, *inputs(40))
    nodes = split.joint.graph.find_nodes(op="placeholder")
    symbols = {compat.symbol_of(node.meta["val"]): node.meta["val"].node.hint for node in nodes if is_size(node)}
    (length,) = (symbol for symbol, hint in symbols.items() if hint == 40)
    given = {}
    for wanted in LENGTHS:
        values = symbols | {length: wanted}
        own, draw, data = iter(inputs(wanted)), torch.Generator().manual_seed(3), []
        for node in nodes:
            value = node.meta["val"]
            if is_size(node):
                data.append(values[compat.symbol_of(value)])
            elif "tangents" in node.name:
                size = [compat.size_at(entry, values) for entry in value.shape]
                data.append(
                    torch.randn(size, generator=draw, dtype=value.dtype) if size else torch.tensor(0.5, dtype=dtype)
                )
            elif compat.sizes_in(value):
                data.append(next(own).detach())
            else:
                data.append(split.inputs[node.meta["desc"].idx].detach())
        given[wanted] = data
    return Symbolic(split.joint, given)


def test_a_graph_is_read_with_other_sizes():
    joint = MODULES["an MLP"]().graph
    values = dict.fromkeys(names_of_symbols(joint), 6)
    (x,) = (node for node in joint.graph.find_nodes(op="placeholder") if "primals" in node.name and wide_as_given(node))
    assert logical_bytes(x.meta["val"]) == 3 * 40 * WIDTH * 8
    with compat.reading_with(values):
        assert logical_bytes(x.meta["val"]) == 6 * 6 * WIDTH * 8
    with compat.reading_with({"another": 6}):
        assert logical_bytes(x.meta["val"]) == 3 * 40 * WIDTH * 8


def wide_as_given(node) -> bool:
    return not is_size(node) and bool(compat.sizes_in(node.meta["val"]))


def is_size(node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


MODULES = {
    "an MLP": lambda: symbolic(mlp(), "floats"),
    "a head and its loss": lambda: symbolic(loss(), "floats", "labels"),
    "a loss without the last token": lambda: symbolic(
        Of(
            lambda m, x, y: cross_entropy(m.head(x[:, :-1]), y[:, 1:]),
            head=linear(WIDTH, 24, bias=False),
        ),
        "floats",
        "labels",
    ),
    "a mean of squares of wide values": lambda: symbolic(
        Of(lambda m, x: m.up(x).square().mean(), up=linear(WIDTH, 32)), "floats"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_all_lengths_are_right(name):
    joint = MODULES[name]()
    assert joint.regions
    for shards in SHARDS:
        assert joint.error(shards) < 1e-12, shards


def test_a_shard_that_is_told_the_wrong_place_is_found(monkeypatch):
    joint = MODULES["an MLP"]()
    stock = tile_graph._cut

    def broken(graph, mode, flat, whole, state, counts):
        parts = list(stock(graph, mode, flat, whole, state, counts))
        return iter([parts[0], *parts[:1], *parts[2:]] if "tangent" in whole.name else parts)

    monkeypatch.setattr(tile_graph, "_cut", broken)
    with pytest.raises(TileError, match="differs from the whole"):
        joint.tiled(3)


def test_a_graph_with_plain_sizes():
    joint = MODULES["an MLP"]().graph
    names = names_of_symbols(joint)
    values = generic(names)
    assert len(names) == 2 and len(set(values.values())) == 2 and set(shortest(joint)) == set(names)
    plain = with_plain_sizes(joint, values)
    assert not names_of_symbols(plain)
    assert [node.name for node in plain.graph.nodes] == [n.name for n in joint.graph.nodes if not is_size(n)]
    assert not any(map(is_size, plain.graph.nodes))


def test_a_plan_of_more_shards_than_the_capture_has_queries_for():
    """40 queries are 20 shards of two; a plan that was made for longer sequences may have more."""
    joint = symbolic(attention.Attention(attention.window(5)), "floats", dtype=attention.DTYPE).graph
    tiling = Tiling(graphs.Joint(joint, 1), parse_options({"tile": {"attention": "auto"}}), "cpu")
    (region,) = (region for region in tiling.regions if region.kind == "attention")

    def shards_of(count: int) -> tuple[int, ...]:
        return tiling.shards_of([Decision(region.outputs[0], 0, Tile(count))])

    assert shards_of(20) == (20,)
    with pytest.raises(PlanError, match="in 21 shards: its length may be 40, and each shard needs two queries: 20"):
        shards_of(21)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a window", "packing"])
def test_attention_of_all_lengths(name):
    """In no more shards than the shortest sequence has queries: no kernel takes a shard without any.

    Packed are two documents: a query that reads one key alone has no gradient, and rounding would be compared.
    """
    module, kinds = (
        (attention.Attention(attention.window(5), layers=2), ("floats",))
        if name == "a window"
        else (attention.Attention(lambda x, documents: attention.packed(x, documents // 12)), ("floats", "labels"))
    )
    joint = dataclasses.replace(symbolic(module, *kinds, dtype=attention.DTYPE), find=find_attention)
    assert joint.regions
    assert joint.error(2) < attention.CLOSE
