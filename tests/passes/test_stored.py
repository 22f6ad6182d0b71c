"""Bodies as a cache stores and loads them."""

import math
import operator
import pickle

import torch
from torch import fx

from memgraph.passes.tiles.stored import CalledGraph

aten = torch.ops.aten


def graph() -> CalledGraph:
    """A body with zeros of its own, a number that Python computes, a constant, and a body within."""
    inner = fx.Graph()
    inner.output(inner.call_function(aten.neg.default, (inner.placeholder("x"),)))
    root = torch.nn.Module()
    root.add_module("within", fx.GraphModule({}, inner))
    root.register_buffer("kept", torch.full((3,), 2.0))
    made = fx.Graph()
    x = made.placeholder("x")
    rows = made.call_function(operator.add, (made.call_function(math.floor, (2.5,)), 1))
    zeros = made.call_function(aten.full.default, ([rows, 3], 0.5), {"dtype": torch.float32, "pin_memory": False})
    added = made.call_function(
        aten.add.Tensor, (made.call_function(aten.add.Tensor, (x, zeros)), made.get_attr("kept"))
    )
    made.output((made.call_module("within", (added,)),))
    return CalledGraph(root, made)


def test_what_is_loaded_is_the_same_graph_and_nothing_of_it_has_run():
    body = graph()
    again = pickle.loads(pickle.dumps(body))
    assert isinstance(again, CalledGraph)
    assert [node.format_node() for node in again.graph.nodes] == [node.format_node() for node in body.graph.nodes]
    assert [name for name, _ in again.named_buffers()] == ["kept"]
    x = torch.randn(3, 3)
    assert torch.equal(again(x)[0], body(x)[0])
