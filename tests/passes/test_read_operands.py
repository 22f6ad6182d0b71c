"""What a body returns of its own inputs, or twice, its caller reads where it has it."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memgraph.passes.graphs import Joint, TilePlan
from memgraph.passes.read_operands import read_operands
from memgraph.verify.rewrite import verify_graph
from tests.support.graphs import why_fixed
from tests.support.splits import X, calls, capture

aten = torch.ops.aten
INVOKE = torch.ops.higher_order.invoke_subgraph


def add(graph: fx.Graph, target, *args) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.map_arg(args, lambda read: read.meta["val"]))
    return node


def called(returned) -> fx.GraphModule:
    """A graph that calls a body twice and returns all that it gives.  returned: by the body, of (x, its tanh)."""
    with FakeTensorMode():
        body = fx.Graph()
        x = body.placeholder("x")
        x.meta["val"] = torch.empty(4, 6)
        outputs = returned(body, x, add(body, aten.tanh.default, x))
        body.output(outputs)
        values = tuple(o.meta["val"] if isinstance(o, fx.Node) else o for o in outputs)
        graph = fx.Graph()
        ins = [graph.placeholder(name) for name in ("one", "other")]
        found = []
        for given in ins:
            given.meta["val"] = torch.empty(4, 6)
            attribute = graph.get_attr("body")
            call = graph.call_function(INVOKE, (attribute, "body", given))
            call.meta["val"] = values
            for n, value in enumerate(values):
                found.append(graph.call_function(operator.getitem, (call, n)))
                found[-1].meta["val"] = value
        graph.output(tuple(found))
    root = nn.Module()
    root.body = fx.GraphModule(nn.Module(), body)
    return fx.GraphModule(root, graph)


CASES = {
    "the input": (lambda g, x, y: (y, x), 1),
    "a view of the input": (lambda g, x, y: (add(g, aten.permute.default, x, [1, 0]), y), 1),
    "a view of a view": (
        lambda g, x, y: (add(g, aten.unsqueeze.default, add(g, aten.t.default, x), 0), y),
        1,
    ),
    "one value twice": (lambda g, x, y: (y, y), 1),
    "a value and its view": (lambda g, x, y: (add(g, aten.view.default, y, [24]), y), 1),
    "two views of one": (lambda g, x, y: (add(g, aten.view.default, y, [24]), add(g, aten.t.default, y)), 1),
    "nothing but the input": (lambda g, x, y: (x,), 0),
    "nothing at a place": (lambda g, x, y: (None, x, y), 2),
}


def rewritten(module: fx.GraphModule) -> fx.GraphModule:
    found = read_operands(Joint(module, 1), TilePlan())
    assert found.modified and found.graphs.module is not module
    return found.graphs.module


@pytest.mark.parametrize("returned, kept", CASES.values(), ids=CASES)
def test_bodies_return_nothing_that_their_caller_has(returned, kept):
    before = called(returned)
    after = rewritten(before)
    verify_graph(before, after, pass_name="read_operands")
    output = after.body.graph.output_node()
    assert len(output.args[0]) == kept
    assert not any(read.op == "placeholder" for read in output.all_input_nodes)
    one, other = torch.randn(4, 6), torch.randn(4, 6)
    for want, got in zip(run(before, one, other), run(after, one, other), strict=True):
        assert want is got is None or torch.equal(want, got)
    assert len(before.body.graph.output_node().args[0]) == len(returned_by(before))  # as it was


def run(module: fx.GraphModule, *inputs: torch.Tensor):
    """Outputs, with bodies called as plain modules."""

    class Plain(fx.Interpreter):
        def call_function(self, target, args, kwargs):
            return args[0](*args[2:]) if target is INVOKE else super().call_function(target, args, kwargs)

    return Plain(module).run(*inputs)


def returned_by(module: fx.GraphModule) -> set[int]:
    return {node.args[1] for node in calls(module) if node.target is operator.getitem}


def test_what_returns_nothing_of_the_kind_is_left_alone():
    before = called(lambda g, x, y: (y, add(g, aten.exp.default, x)))
    given = Joint(before, 1)
    found = read_operands(given, TilePlan())
    assert found.graphs is given and not found.modified


@torch.compiler.nested_compile_region
def layer(linear, x):
    return x + torch.tanh(linear(x))


@torch.compiler.nested_compile_region
def dropped(linear, x):
    return x + torch.nn.functional.dropout(linear(x), 0.5)


class Nested(nn.Module):
    def __init__(self, region):
        super().__init__()
        self.layers, self.region = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), region

    def forward(self, x):
        for linear in self.layers:
            x = self.region(linear, x)
        return x.square().sum()


def test_a_nested_region_is_legal_after_it():
    joint = capture(Nested(layer), X).joint
    after = rewritten(joint)
    verify_graph(joint, after, pass_name="read_operands")
    assert len(calls(after, "invoke_subgraph")) == len(calls(joint, "invoke_subgraph")) > 2
    reads = [len([n for n in g.graph.nodes if n.target is operator.getitem]) for g in (joint, after)]
    assert reads[1] < reads[0]


@pytest.mark.slow
def test_a_region_that_draws_does_not_run_twice():
    for region, why in ((layer, ""), (dropped, "draws random numbers")):
        joint = capture(Nested(region), X).joint
        assert why in {why_fixed(call) for call in calls(joint, "invoke_subgraph")} <= {"", why}


def test_bodies_that_bodies_call():
    """The outer body returns what the inner one gives it: its own input."""
    inner = called(lambda g, x, y: (x, y))
    with FakeTensorMode():
        graph = fx.Graph()
        one = graph.placeholder("one")
        one.meta["val"] = torch.empty(4, 6)
        call = graph.call_function(INVOKE, (graph.get_attr("outer"), "outer", one, one))
        call.meta["val"] = inner.graph.output_node().args[0][0].meta["val"], *(torch.empty(4, 6) for _ in range(3))
        found = [graph.call_function(operator.getitem, (call, n)) for n in range(4)]
        for element in found:
            element.meta["val"] = torch.empty(4, 6)
        graph.output(tuple(found))
    root = nn.Module()
    root.outer = inner
    before = fx.GraphModule(root, graph)
    after = rewritten(before)
    verify_graph(before, after, pass_name="read_operands")
    for body in (after.outer, after.outer.body):
        assert not any(read.op == "placeholder" for read in body.graph.output_node().all_input_nodes)
    given = torch.randn(4, 6)
    for want, got in zip(run(before, given), run(after, given), strict=True):
        assert torch.equal(want, got)
