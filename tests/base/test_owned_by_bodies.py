"""Which inputs a body may overwrite: those that each of its calls reads alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import fx, nn

from memgraph.base.compat.inductor import _read_by_calls_alone

INVOKE = torch.ops.higher_order.invoke_subgraph
NAMES = ("first", "second", "third", "fourth")


def lowering(*calls: str, body: str = "", also: str = "", shared: bool = False, owned=(0, 1, 2, 3), backward=True):
    """A caller's lowering at its last call.

    calls: the numbers of the inputs that each call gets.  body: a call of another body.  also: inputs that something
    else reads.  shared: the first two inputs lie in one memory.  owned: the inputs that the caller may overwrite.
    """
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in NAMES]
    for node in inputs:
        node.meta["val"] = torch.empty(4)
    if shared:
        inputs[1].meta["val"] = inputs[0].meta["val"].view(2, 2)

    def call(name: str, places: str) -> fx.Node:
        given = (inputs[int(place)] for place in places)
        return graph.call_function(INVOKE, (graph.get_attr(name), name, *given))

    root = nn.Module()
    root.layer, root.other = nn.Module(), nn.Module()
    found = [call("layer", places) for places in calls]
    rest = [call("other", body)] if body else []
    rest += [graph.call_function(torch.neg, (inputs[int(place)],)) for place in also]
    graph.output((*found, *rest))
    module = fx.GraphModule(root, graph)
    return SimpleNamespace(
        is_backward=backward,
        bw_donated_idxs=list(owned),
        current_node=found[-1],
        module=SimpleNamespace(graph=module.graph),
    )


@pytest.mark.parametrize(
    ("caller", "places"),
    [
        (lowering("01", "23"), [0, 1]),
        (lowering("01", "23", owned=(0, 1, 3)), [1]),  # by number of the caller's inputs, not of the body's
        (lowering("01", "20"), []),  # two calls read the first
        (lowering("01", "23", also="2"), [1]),
        (lowering("01", body="12"), [0]),
        (lowering("0123", shared=True), [2, 3]),
        (lowering("001"), [2]),  # it would be read after it is written
        (lowering("01", "23", backward=False), []),
        (lowering("01", "23", owned=()), []),
    ],
)
def test_what_calls_alone_read(caller, places):
    assert _read_by_calls_alone(caller) == places


def test_a_call_within_another_operator_owns_nothing():
    caller = lowering("01", also="2")
    caller.current_node = caller.module.graph.find_nodes(op="call_function", target=torch.neg)[0]
    assert _read_by_calls_alone(caller) == []


def test_a_caller_that_knows_of_nothing_owns_nothing():
    caller = lowering("01")
    caller.bw_donated_idxs = None
    assert _read_by_calls_alone(caller) == []
