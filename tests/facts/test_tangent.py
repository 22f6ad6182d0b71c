"""What depends on a region's forward, asked node by node, against all that can be reached from it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from memgraph.facts.tokens.graph import TokenGraph
from memgraph.facts.tokens.tangent import DependentForward


@st.composite
def graphs(draw) -> TokenGraph:
    graph = fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("tangents_1")]
    for _ in range(draw(st.integers(1, 12))):
        reads = [draw(st.sampled_from(nodes)) for _ in range(2)]
        nodes.append(graph.call_function(torch.ops.aten.add.Tensor, tuple(reads)))
    graph.output((nodes[-1],))
    return TokenGraph(fx.GraphModule({}, graph))


@given(graphs(), st.data())
def test_depends_what_can_be_reached(graph: TokenGraph, data: st.DataObject) -> None:
    computed = [node for node in graph.nodes if node.op == "call_function"]
    own = data.draw(st.sets(st.sampled_from(computed)))
    reached = own - graph.backward
    pending = list(reached)
    while pending:
        new = set(pending.pop().users) - reached - graph.backward
        reached |= new
        pending += new
    found = DependentForward(graph, own)
    asked = data.draw(st.permutations(graph.nodes))  # what is known from one answer must not spoil the next
    assert [node in found for node in asked] == [node in reached for node in asked]
