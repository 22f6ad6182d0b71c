"""The gradient of a table that all layers look up, made of the gradient of each layer in place of their sum."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.backend.table_gradients import TableGradients
from memgraph.base.errors import VerifyError
from memgraph.facts.tokens import table_gradients as facts
from memgraph.facts.tokens.states import PARTIAL
from memgraph.facts.tokens.table_gradients import table_gradients
from memgraph.passes import graphs
from memgraph.passes.apart import apart
from memgraph.verify import apart as verifier
from memgraph.verify.apart import verify_apart
from tests.facts.test_scores import FAR, LENGTH, Composed, Joint, joint_of, squares
from tests.support import tiles
from tests.support.attention import CLOSE, DTYPE, HEADS
from tests.support.lanes import slow_but

aten = torch.ops.aten
# Where a put has its places and what it puts; torch 2.11 puts zeros where a newer one has a mask.
PUTS = {aten._unsafe_masked_index_put_accumulate.default: (2, 3), aten.index_put.default: (1, 2)}
LAYERS = 3


@functools.cache
def biased(batch: int = 2, **options) -> Joint:
    torch.manual_seed(0)
    return joint_of(Composed(layers=LAYERS, bias=True, **options), batch)


def set_apart(joint: Joint) -> Joint:
    """The same joint graph with all gradients of tables made part by part."""
    plan = graphs.TilePlan(apart=table_gradients(joint.graph))
    return Joint(apart(graphs.Joint(joint.graph, 1), plan).graphs.module, joint.data)


def found(joint: Joint) -> list[torch.fx.Node]:
    return [node for node in joint.graph.graph.nodes if node.target in PUTS]


def test_each_part_is_put_before_the_next_is_made():
    before = biased()
    (gradient,) = table_gradients(before.graph)
    after = set_apart(before)
    place = {node.name: n for n, node in enumerate(after.graph.graph.nodes)}
    assert len(gradient.parts) == LAYERS and gradient.total not in place
    assert [node.name for node in found(after)] == list(gradient.puts)
    assert all(node.meta["val"].shape == (FAR, HEADS) for node in found(after))
    assert len(squares(before, gradient.parts)) == 0  # one for all sequences
    for part, put, later in zip(gradient.parts, gradient.puts, gradient.parts[1:], strict=False):
        assert place[part] < place[put] < place[later]
    total = next(node for node in after.graph.graph.nodes if node.name == gradient.put)
    assert total.target is aten.add.Tensor and total.args[1].name == gradient.puts[-1]


@pytest.mark.parametrize("batch", [1, 2])
def test_the_values_are_the_same(batch):
    before = biased(batch)
    after = set_apart(before)
    verify_apart(before.graph, after.graph, [table_gradients(before.graph)[0].put], "apart")
    assert tiles.distance(before.run(before.graph), after.run(after.graph)) < CLOSE


SHARDED = {
    "one sequence": lambda: biased(1),
    "several sequences": biased,
    "no mask": lambda: biased(masked=False),
    "dropout and sinks": lambda: biased(dropout=0.2, sinks=True),
}


@pytest.mark.parametrize("name", slow_but(SHARDED, fast={"one sequence"}))
def test_a_tile_of_attention_makes_its_part_of_the_tables_gradient(name):
    joint = set_apart(SHARDED[name]())
    puts = {node.name for node in found(joint)}
    nodes = {node.name: node for node in joint.graph.graph.nodes}
    assert len(joint.regions) == len(puts) == LAYERS and not joint.refused
    for region in joint.regions:
        (put,) = puts.intersection(region.outputs)
        assert region.states[put] == PARTIAL
        crossing = [nodes[name].meta["val"] for name in (*region.inputs, *region.outputs)]
        masks = [value for value in crossing if value.dtype == torch.bool]  # of dropout, which are drawn as a whole
        assert len(masks) == ("dropout" in name)
        rest = [value for value in crossing if value.dtype != torch.bool]
        assert max(value.numel() for value in rest) < LENGTH**2  # each shard makes its bias and its places itself
    for shards in (2, 5):
        assert joint.error(shards) < CLOSE


def test_only_the_tables_that_some_tiles_add_to_are_made_so():
    joint = graphs.Joint(biased().graph, 1)
    tables = TableGradients(joint, verify=True, wanted=True)
    regions = Joint(tables.all.module, biased().data).regions
    assert tables.of(()) is joint
    assert tables.of(regions[:1]) is tables.of(regions) is tables.all
    (gradient,) = tables.found
    begun = dataclasses.replace(regions[0], backward=(f"{gradient.between[0]}_of_{gradient.parts[0]}",))
    assert tables.of([begun]) is tables.all  # the graph that came has no such node
    assert TableGradients(joint, verify=True, wanted=False).all is joint


def test_nothing_to_do_changes_nothing():
    joint = graphs.Joint(biased().graph, 1)
    assert apart(joint, graphs.TilePlan()).graphs is joint


def attending(both, x, bias):
    return ((x @ both @ x.mT + bias).softmax(-1) @ x).square().mean()


def looked_up(rows: int, returned: bool = False, scale: float = 1.0, uses: int = 2):
    """A bias that `uses` products read, from a table of so many rows; the bias may be returned as well."""

    def forward(m, x):
        places = torch.arange(LENGTH)
        bias = F.embedding((places[:, None] - places).clamp(0, rows - 1), m.table).squeeze(-1)
        loss = sum(scale**n * attending(m.both, x * (n + 1), bias) for n in range(uses))
        return (loss, bias) if returned else loss

    both, table = nn.Parameter(torch.randn(8, 8, dtype=DTYPE)), nn.Parameter(torch.randn(rows, 1, dtype=DTYPE))
    return tiles.joint_of(tiles.Of(forward, both=both, table=table), tiles.floats(2, LENGTH, 8)).graph


@pytest.mark.parametrize(
    ("joint", "parts"),
    [
        (lambda: looked_up(4), [2]),
        (lambda: looked_up(4, uses=3, scale=2.0), [3]),
        (lambda: looked_up(4, returned=True), [3]),  # its own gradient is one more
        (lambda: looked_up(4, uses=1), []),
        (lambda: looked_up(LENGTH**2), []),  # the table is as large as the bias
    ],
)
def test_which_tables_are_found(joint, parts):
    assert [len(gradient.parts) for gradient in table_gradients(joint())] == parts


def edited(edit) -> list:
    """What is found after an edit of the joint graph of two readers: (graph, put, what it puts, the sum of both)."""
    gm = looked_up(4)
    (gradient,) = table_gradients(gm)
    nodes = {node.name: node for node in gm.graph.nodes}
    edit(gm.graph, nodes[gradient.put], nodes[(*gradient.between, gradient.total)[-2]], nodes[gradient.total])
    return list(table_gradients(gm))


def _from_ones(graph, put, added, total):
    put.args[0].args = (put.args[0].args[0], 1)


def _read_twice(graph, put, added, total):
    output = graph.output_node()
    output.args = ([*output.args[0], total],)


def _weighted(graph, put, added, total):
    total.kwargs = {"alpha": 2}


def _twice_the_same(graph, put, added, total):
    total.args = (total.args[0], total.args[0])


@pytest.mark.parametrize("edit", [_from_ones, _read_twice, _weighted, _twice_the_same])
def test_what_is_no_sum_that_the_table_alone_reads_is_left(edit):
    assert not edited(edit)


def test_the_verifier_lets_sums_through_what_is_found_behind():
    """Else a rewrite that is right would be taken for a bug."""
    looked_for = facts._VIEWS | facts._CONVERTS | facts._PUTS | {facts._MASKED}
    assert looked_for <= verifier._VIEWS | verifier._CONVERTS | verifier._PUTS


# --- the verifier: one small edit of a rewritten graph each --------------------------------------------------------


def _a_part_twice(graph, parts, total):
    parts[1].args = parts[0].args


def _a_part_left_out(graph, parts, total):
    total.args = (total.args[0], total.args[0])


def _scaled(graph, parts, total):
    place = PUTS[parts[0].target][1]
    values = parts[0].args[place]
    with graph.inserting_before(parts[0]):
        made = graph.call_function(aten.mul.Tensor, (values, 2.0))
    made.meta = dict(values.meta)
    parts[0].update_arg(place, made)


def _other_places(graph, parts, total):
    place = PUTS[parts[0].target][0]
    (places,) = parts[0].args[place]
    with graph.inserting_before(parts[0]):
        made = graph.call_function(aten.flip.default, (places, [0]))
    made.meta = dict(places.meta)
    parts[0].update_arg(place, [made])


def _not_into_zeros(graph, parts, total):
    with graph.inserting_before(parts[0]):
        made = graph.node_copy(parts[0].args[0])
    made.args = (made.args[0], 1)
    parts[0].args = (made, *parts[0].args[1:])


def _subtracted(graph, parts, total):
    total.target = aten.sub.Tensor


def _weighted_sum(graph, parts, total):
    total.kwargs = {"alpha": 3}


EDITS = [_a_part_twice, _a_part_left_out, _scaled, _other_places, _not_into_zeros, _subtracted, _weighted_sum]


@pytest.mark.parametrize("edit", EDITS)
def test_the_verifier_sees_it(edit):
    before = biased()
    (gradient,) = table_gradients(before.graph)
    after = set_apart(before).graph
    nodes = {node.name: node for node in after.graph.nodes}
    edit(after.graph, [nodes[name] for name in gradient.puts], nodes[gradient.put])
    after.recompile()
    with pytest.raises(VerifyError, match=f"{gradient.put} adds up other values than before"):
        verify_apart(before.graph, after, [gradient.put], "apart")


def test_the_verifier_sees_another_change_around():
    before = biased()
    (gradient,) = table_gradients(before.graph)
    after = set_apart(before).graph
    output = after.graph.output_node()
    first, *rest = output.args[0]
    output.args = ((rest[0], *rest),)
    with pytest.raises(VerifyError):
        verify_apart(before.graph, after, [gradient.put], "apart")
