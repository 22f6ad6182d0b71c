"""What single operators are predicted to cost."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from memgraph.facts.costs import numbers_put, seconds
from memgraph.machine.hardware import built_in
from tests.support.tiles import Of, joint_of

CPU = dataclasses.replace(built_in("cpu"), put_time=1.0)
ROWS, WIDTH, TABLE = 24, 4, 8


def test_each_number_that_is_put_by_its_place_has_a_price():
    table = torch.nn.Parameter(torch.randn(TABLE, WIDTH))
    looked_up = Of(lambda m, places: torch.nn.functional.embedding(places, m.table).square().sum(), table=table)
    graph = joint_of(looked_up, torch.arange(ROWS) % TABLE).graph.graph
    (put,) = (node for node in graph.nodes if "index_put" in str(node.target))
    assert numbers_put(put) == ROWS * WIDTH
    assert seconds(put, CPU) == pytest.approx(ROWS * WIDTH, rel=1e-3)
    assert seconds(put, dataclasses.replace(CPU, put_time=0.0)) < 1e-6


@pytest.mark.parametrize(("accumulate", "numbers"), [(True, ROWS * WIDTH), (False, 0)])
def test_what_is_written_over_is_not_added_up(accumulate, numbers):
    graph = torch.fx.Graph()
    shapes = {"table": (TABLE, WIDTH), "added": (ROWS, WIDTH)}
    table, added = (graph.placeholder(name) for name in shapes)
    places = graph.placeholder("places")
    for node in (table, added):
        node.meta["val"] = torch.zeros(shapes[node.name])
    places.meta["val"] = torch.zeros(ROWS, dtype=torch.int64)
    put = graph.call_function(torch.ops.aten.index_put.default, (table, [places], added, accumulate))
    put.meta["val"] = torch.zeros(TABLE, WIDTH)
    assert numbers_put(put) == numbers
    assert (seconds(put, CPU) > 1.0) == accumulate
