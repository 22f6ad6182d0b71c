"""The trial of tiles: independent of how they are built, on sizes that are small, within its room."""

from __future__ import annotations

import ast
import functools
import math
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import memgraph
from memgraph.base.errors import VerifyError
from memgraph.facts.operators import short_name
from memgraph.facts.tokens.states import Sharded
from memgraph.machine.measure import peak_above_start
from memgraph.passes.tiles import body as bodies
from memgraph.passes.tiles import shards as tile_graph
from memgraph.verify.smaller import Relations
from memgraph.verify.tiles import TileError, verify_tiles
from memgraph.verify.trial import Differs, Trial
from tests.support.tiles import WIDTH, Joint, Of, floats, joint_of, linear, loss, mlp

aten = torch.ops.aten


def verify(joint: Joint, shards: int, **options) -> None:
    verify_tiles(joint.graph, joint.tiled(shards), [(region, shards) for region in joint.regions], **options)


# --- a builder that is wrong ------------------------------------------------------------------------------
# These break the code itself: a verifier that builds a tile of its own with it finds two equal tiles.


@functools.cache
def scaled() -> Joint:
    """Not the same with its operands in another order, and with a number in it."""
    module = Of(
        lambda m, x: m.down((m.gate(x) - m.up(x).sin()) * 0.3),
        gate=linear(WIDTH, 32),
        up=linear(WIDTH, 32),
        down=linear(32, WIDTH),
    )
    return joint_of(module, floats())


@functools.cache
def rounded() -> Joint:
    return joint_of(mlp(), floats().detach().bfloat16(), dtype=torch.bfloat16)


def swapped(graph, mode, node, args, region, shard):
    args = bodies_resized(graph, mode, node, args, region, shard)
    return [args[1], args[0], *args[2:]] if short_name(node.target) == "sub" else args


def without_scale(graph, mode, node, args, region, shard):
    args = bodies_resized(graph, mode, node, args, region, shard)
    return [args[0], 1.0] if short_name(node.target) == "mul" and args[1] == 0.3 else args


def rowless(graph, mode, before, part, node, region, tokens, start):
    if isinstance(region.states[node.name], Sharded) and start:
        return before
    return tile_graph_gather(graph, mode, before, part, node, region, tokens, start)


def first_tangent(graph, mode, flat, whole, state, counts):
    if "tangent" not in whole.name:
        return tile_graph_cut(graph, mode, flat, whole, state, counts)
    return (next(tile_graph_cut(graph, mode, flat, whole, state, [rows])) for rows in counts)


bodies_resized, tile_graph_gather, tile_graph_cut = bodies._resized, tile_graph._gather, tile_graph._cut
FAULTS = {
    "two operands of one shape are swapped": (scaled, bodies, "_resized", swapped, "differs from the whole"),
    "a scale is dropped": (scaled, bodies, "_resized", without_scale, "differs from the whole"),
    "a shard's rows are forgotten": (scaled, tile_graph, "_gather", rowless, "differs from the whole"),
    "sums in bfloat16": (rounded, tile_graph, "accumulator", lambda dtype: dtype, "adds shards up in bfloat16"),
    "the first shard's tangent for all": (scaled, tile_graph, "_cut", first_tangent, "differs from the whole"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_builder_that_is_wrong(fault, monkeypatch):
    joint, module, name, broken, words = FAULTS[fault]
    verify(joint(), 3)
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((TileError, VerifyError), match=words):
        verify(joint(), 3)


def test_the_verifier_imports_nothing_that_builds_tiles():
    """Nor does what it imports of memgraph, but for the numbers and names that facts have of a region."""
    pending, seen = ["memgraph.verify.tiles"], set()
    while pending:
        name = pending.pop()
        path = Path(memgraph.__file__).parents[1].joinpath(*name.split("."))
        file = next((item for item in (path.with_suffix(".py"), path / "__init__.py") if item.is_file()), None)
        if name in seen or file is None or name in ("memgraph", "memgraph.facts.tokens.region"):
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                pending += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                pending += [alias.name for alias in node.names]
    assert {"memgraph.verify.trial", "memgraph.verify.smaller", "memgraph.verify.walk"} <= seen
    forbidden = (
        "memgraph.passes.tiles.shards",
        "memgraph.passes.tiles.body",
        "memgraph.passes.insert",
        "memgraph.passes",
        "memgraph.facts.to",
    )
    assert [name for name in seen if name.startswith(forbidden)] == []


# --- sizes ------------------------------------------------------------------------------------------------


def relations(function, *shapes: tuple[int, ...]) -> Relations:
    found = Relations()
    graph = make_fx(function, tracing_mode="fake")(*map(torch.empty, shapes))
    found.read(graph.graph)
    return found


def test_what_nothing_binds_becomes_small_and_different():
    sizes = relations(lambda x, w: x @ w, (4096, 1000), (1000, 128256)).smaller()
    small = [sizes[n] for n in (4096, 1000, 128256)]
    assert max(small) <= 8 and len(set(small)) == 3


def test_a_view_keeps_the_product():
    sizes = relations(lambda x: x.view(8192, 32, 128), (2, 4096, 4096)).smaller()
    assert sizes[8192] == 2 * sizes[4096] and sizes[4096] == sizes[32] * sizes[128] and sizes[4096] < 64


@pytest.mark.parametrize("rows", [512, 586, 256])
@pytest.mark.parametrize("tokens", [4095, 4096])
def test_the_whole_is_the_sum_of_its_shards(tokens, rows):
    starts = range(0, tokens, rows)
    found = relations(lambda x: [x.view(-1, 700)[n : n + rows] for n in starts], (1, tokens, 700))
    sizes = found.smaller()
    last = tokens - starts[-1]
    assert sizes[tokens] == (len(starts) - 1) * sizes[rows] + sizes[last] < 100 and sizes[last] >= 2


def test_sizes_that_stay_and_sizes_that_are_even():
    found = relations(lambda x, w: torch.cat([x @ w, x], -1), (4096, 1024), (1024, 2048))
    sizes = found.smaller(even={1024}, kept={4096})
    assert sizes[4096] == 4096 and sizes[1024] == 16 and sizes[3072] == sizes[1024] + sizes[2048]


def test_what_follows_from_other_sizes_is_even_too():
    """Rows of 512 features in bfloat16, as many as there are tokens in four shards."""
    found = relations(lambda x: [x[n : n + 128] for n in range(0, 512, 128)], (512, 512))
    sizes = found.smaller(even={512})
    assert sizes[512] == 16 and sizes[128] == 4


def test_a_table_of_which_the_graph_computes_places_keeps_its_rows():
    """Places that are drawn are 0 and 1, but computed ones reach the last row: they would be out of bounds."""

    def biases(computed: bool):
        def made(x, table):
            places = torch.arange(4096)
            reached = (places[:, None] - places).clamp(0, 31) if computed else x.long()
            return x + torch.nn.functional.embedding(reached, table)[..., 0]

        return relations(made, (4096, 4096), (32, 64)).smaller()

    assert biases(True)[32] == 32 and biases(True)[4096] < 16 > biases(True)[64]


def test_sizes_that_cannot_be_smaller():
    found = Relations()
    found.products |= {((18, 18, 18), (17,)), ((18, 18), (17,))}  # of no graph
    assert [found.smaller()[n] for n in (17, 18)] == [17, 18]


# --- room -------------------------------------------------------------------------------------------------


def test_a_large_head_is_tried_in_little_memory():
    """With its own weights, their gradient whole and in shards, it took 100 MiB."""
    joint = joint_of(
        loss(head=linear(64, 1 << 17, False)),
        floats(2, 128, 64).float().detach(),
        torch.randint(0, 100, (2, 128)),
        dtype=torch.float32,
    )
    tiled, tiles = joint.tiled(4), [(region, 4) for region in joint.regions]
    assert len(tiles) == 1
    peak = peak_above_start(lambda: verify_tiles(joint.graph, tiled, tiles), torch.device("cpu"))
    assert peak < 1 << 20


def test_what_takes_more_than_the_room_is_refused_before_it_is_allocated():
    joint = scaled()
    tiled, tiles = joint.tiled(2), [(region, 2) for region in joint.regions]

    def refused():
        words = "cannot be tried: with its smallest sizes it takes .* a trial may take 1000"
        with pytest.raises(TileError, match=words):
            verify_tiles(joint.graph, tiled, tiles, room=1000)

    assert peak_above_start(refused, torch.device("cpu")) < 1000


def short_of_memory(x: torch.Tensor) -> torch.Tensor:
    if type(x) is torch.Tensor:  # not when only shapes are looked at
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")
    return x


def test_no_memory_is_a_refusal():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(short_of_memory, (x,))
    x.meta["val"] = y.meta["val"] = torch.empty(4, device="meta")
    graph.output((y,))
    trial = Trial(graph, fx.GraphModule({}, graph), frozenset(), (0,), frozenset(), ("y",))
    with pytest.raises(Differs, match="cannot be tried: out of memory: tried to allocate 2 GiB"):
        trial.run()


def test_what_has_no_kernel_for_its_type_on_the_cpu_is_tried_in_another():
    """How many rows go to each expert is counted in integers on CUDA, which the CPU does not do."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.histc.default, (x, 4, 0, 3))
    x.meta["val"] = torch.empty(64, dtype=torch.int32, device="meta")
    y.meta["val"] = torch.empty(4, dtype=torch.int32, device="meta")
    graph.output((y,))
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for"):
        torch.histc(torch.zeros(64, dtype=torch.int32), 4, 0, 3)
    Trial(graph, fx.GraphModule({}, graph), frozenset(), (0,), frozenset(), ("y",)).run()


def test_an_operator_that_wants_its_own_sizes_gets_them():
    """The tenth smallest of 32: with fewer features there is none."""
    joint = joint_of(mlp(lambda m, h: h * (h > h.kthvalue(30, -1, keepdim=True)[0])), floats())
    verify(joint, 2)


def test_a_mean_is_divided_by_the_count_that_the_graph_was_written_for():
    module = mlp()
    module.function = lambda m, x: (m.down(h := m.up(x).relu()), h.square().mean())
    joint = joint_of(module, floats(2, 40, WIDTH))
    verify(joint, 4)
    tiled = joint.tiled(4)
    body = tiled.tile_0.body_0
    (divided,) = [node for node in body.graph.nodes if short_name(node.target) == "div"]
    assert divided.args[1] == math.prod((2, 40, 32))
    divided.args = (divided.args[0], 20 * 32)
    with pytest.raises(TileError, match="mean in shards differs"):
        verify_tiles(joint.graph, tiled, [(region, 4) for region in joint.regions])
