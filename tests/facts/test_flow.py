"""The flow of states and the border of a region, on a graph that is written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from memgraph.facts.tokens import border
from memgraph.facts.tokens.border import Draft, Frame
from memgraph.facts.tokens.flow import TokenFlow
from memgraph.facts.tokens.graph import TokenGraph
from memgraph.facts.tokens.growth import grow
from memgraph.facts.tokens.states import REPLICATED, MixesTokens, Sharded
from memgraph.facts.views import is_view, view_base

aten = torch.ops.aten
TOKENS, WIDTH, WIDE = 12, 8, 32


def graph_of(middle=aten.relu.default, *rest) -> tuple[TokenGraph, dict[str, fx.Node]]:
    """y = middle(x @ up) @ down, with metadata."""
    graph = fx.Graph()

    def put(name: str, target=None, *args) -> fx.Node:
        node = (
            graph.placeholder(name) if target is None else graph.create_node("call_function", target, args, name=name)
        )
        return node

    x, up, down = put("x"), put("up"), put("down")
    for node, shape in ((x, (TOKENS, WIDTH)), (up, (WIDTH, WIDE)), (down, (WIDE, WIDTH))):
        node.meta["val"] = torch.empty(shape, device="meta")
    h = put("h", aten.mm.default, x, up)
    g = put("g", middle, h, *rest)
    y = put("y", aten.mm.default, g, down)
    for node in (h, g, y):
        node.meta["val"] = node.target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args))
    graph.output((y,))
    return TokenGraph(fx.GraphModule({}, graph)), {node.name: node for node in graph.nodes}


def flow_of(graph: TokenGraph, nodes: dict[str, fx.Node]) -> TokenFlow:
    flow = TokenFlow(Frame(graph, TOKENS, TOKENS * WIDTH))
    flow.require(nodes["x"], Sharded((0,)), nodes["h"])
    flow.add(nodes["h"])
    return flow


def test_members_and_states():
    graph, nodes = graph_of()
    flow = flow_of(graph, nodes)
    assert flow.draft.pending == {nodes["g"]}  # it reads what is wide
    flow.spread()
    assert flow.draft.members == {nodes[name] for name in "hgy"}
    assert flow.draft.states == dict.fromkeys((nodes[name] for name in "xhgy"), Sharded((0,))) | dict.fromkeys(
        (nodes["up"], nodes["down"]), REPLICATED
    )
    assert border.inputs(flow.frame, flow.draft) == [nodes[name] for name in ("x", "up", "down")]
    assert border.outputs(flow.frame, flow.draft) == [nodes["y"]]


def test_a_failed_attempt_keeps_the_old_draft():
    graph, nodes = graph_of(aten.cumsum.default, 0)
    flow = flow_of(graph, nodes)
    before, members = flow.draft, flow.draft.members
    assert not flow.attempt(flow.spread)
    assert flow.draft is before and flow.draft.members == members == {nodes["h"]}
    with pytest.raises(MixesTokens, match="g: cumsum runs along the tokens"):
        flow.spread()


def test_a_draft_is_changed_by_making_another():
    graph, nodes = graph_of()
    frame, empty = Frame(graph, TOKENS, TOKENS * WIDTH), Draft()
    entered = border.entered(frame, empty.with_state(nodes["h"], REPLICATED), nodes["h"])
    assert empty == Draft()
    assert entered.members == {nodes["h"]} and nodes["h"] not in entered.states
    assert border.after_members(frame, entered, nodes["y"]) and not border.after_members(frame, entered, nodes["h"])


def test_two_readers_must_agree():
    graph, nodes = graph_of()
    flow = flow_of(graph, nodes)
    with pytest.raises(MixesTokens, match="y: mm reads x both by tokens and whole"):
        flow.require(nodes["x"], REPLICATED, nodes["y"])


def test_a_region_and_the_nodes_that_it_takes():
    graph, nodes = graph_of()
    members, region = grow(graph, nodes["h"], nodes["x"])
    assert {node.name for node in members} == region.nodes == {"h", "g", "y"}
    assert region.kind == "mlp" and region.outputs == ("y",)


def test_the_base_of_views():
    graph = fx.Graph()
    x = graph.placeholder("x")
    seen = graph.call_function(aten.t.default, (graph.call_function(aten.view.default, (x, [4])),))
    assert view_base(seen) is x and view_base(x) is x
    assert view_base(seen, lambda node: is_view(node) and node.target is aten.t.default) is seen.args[0]
