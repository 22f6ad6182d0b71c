"""verify/rewrite.py passes what is legal (DESIGN section 7)."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base.errors import VerifyError
from memgraph.verify.rewrite import NumberedJoint, snapshot, verify_graph
from memgraph.verify.terms import Terms
from tests.support.splits import MODULES, X, after, calls, capture, graphsafe, output, recompute_mask, split_of

aten = torch.ops.aten


LEGAL = [*MODULES, "mlp@inductor", "attention@inductor", "norm@inductor", "views@inductor"]
LEGAL += ["mlp@dynamic", "attention@dynamic", "tied@dynamic"]


@pytest.mark.parametrize("name", LEGAL)
def test_the_stock_partition_is_legal(name):
    split_of(name).verify()


@pytest.mark.parametrize("name", LEGAL)
def test_a_copy_is_legal(name):
    split = split_of(name)
    for graph in (split.joint, split.forward, split.backward):
        verify_graph(graph, snapshot(graph), pass_name="copy")


@pytest.mark.parametrize("name", LEGAL)
def test_many_splits_are_held_against_one_numbering(name):
    """What one of them draws, writes or gets wrong is no matter of the next."""
    split = split_of(name)
    joint = NumberedJoint(split.joint)
    told = {"num_fwd_outputs": split.count, "pass_name": "the pass"}
    joint.verify(split.forward, split.backward, **told)
    broken = split.copy()
    node = next(node for node in reversed(calls(broken.backward)) if node in output(broken.backward).all_input_nodes)
    node.replace_all_uses_with(after(node, aten.neg.default, node), delete_user_cb=lambda user: user.op == "output")
    with pytest.raises(VerifyError):
        joint.verify(broken.forward, broken.backward, **told)
    joint.verify(split.forward, split.backward, **told)


def test_a_body_that_was_rewritten_in_place_is_numbered_again():
    body = fx.symbolic_trace(lambda x: torch.sin(x))
    terms = Terms()
    before = terms.body(body)
    node = next(node for node in body.graph.nodes if node.op == "call_function")
    node.target = torch.cos
    terms.forget_bodies()
    assert terms.body(body) is not before
    node.target = torch.sin
    terms.forget_bodies()
    assert terms.body(body) is before


def test_inductor_draws_seeds():
    assert any("inductor_seeds" in str(node.target) for node in split_of("mlp@inductor").joint.graph.nodes)


# --- legal rewrites -------------------------------------------------------------------------------------


def test_a_recompute_chain_in_copies_is_legal():
    split = split_of("attention")
    copied = 0
    for node in calls(split.backward):
        for user in list(node.users)[1:]:
            if user.op == "output":
                continue
            with split.backward.graph.inserting_before(user):
                twin = split.backward.graph.node_copy(node, lambda read: read)
            user.replace_input_with(node, twin)
            copied += 1
    assert copied
    split.verify()


def test_a_mask_recomputed_from_saved_seeds_is_legal():
    split = split_of("mlp@inductor")
    recompute_mask(split, draw=False)
    split.verify()


@pytest.mark.parametrize("name", ["mlp", "attention", "norm", "mlp@inductor"])
def test_another_order_is_legal(name):
    split = split_of(name)
    nodes = list(split.backward.graph.nodes)
    moved = 0
    for node in reversed([node for node in nodes if node.op == "call_function"]):
        first = min(node.users, key=list(split.backward.graph.nodes).index)
        if node.next is not first:
            first.prepend(node)
            moved += 1
    assert moved
    split.verify()
    verify_graph(split_of(name).backward, split.backward, pass_name="reorder")


def test_a_replay_from_generators_is_legal():
    split = split_of("checkpointed")
    graphsafe(split)
    assert calls(split.backward, "graphsafe_run_with_rng_state")
    split.verify()


def test_a_control_dependency_is_legal():
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    split = split_of("mlp")
    first, *_, last = [node for node in calls(split.backward) if isinstance(node.meta["val"], torch.Tensor)]
    preserve_node_ordering(split.backward.graph, {last: OrderedSet([first])})
    assert calls(split.backward, "control_deps")
    split.verify()


def test_a_new_value_that_is_read_nowhere_is_legal():
    split = split_of("mlp")
    node = calls(split.forward)[2]
    after(node, aten.clone.default, node)
    split.verify()


def test_names_do_not_count():
    split = split_of("mlp@inductor")
    for graph in (split.forward, split.backward):
        for place, node in enumerate(calls(graph)):
            node._rename(f"other_{place}")
    split.verify()


# --- bodies ---------------------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def region(linear, x):
    return torch.tanh(linear(x))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for linear in self.layers:
            x = region(linear, x)
        return x.sum()


def outlined(graph: fx.GraphModule, target, *, returns_input: bool) -> fx.GraphModule:
    """The calls of an op of one argument moved into a body."""
    body = fx.Graph()
    x = body.placeholder("x")
    node = calls(graph, target)[0]
    inner = body.call_function(node.target, (x, *node.args[1:]))
    inner.meta = dict(node.meta)
    body.output((inner, x) if returns_input else (inner,))
    graph.body = fx.GraphModule(torch.nn.Module(), body)
    for node in calls(graph, target):
        with graph.graph.inserting_before(node):
            attribute = graph.graph.get_attr("body")
            call = graph.graph.call_function(torch.ops.higher_order.invoke_subgraph, (attribute, "body", node.args[0]))
            element = graph.graph.call_function(operator.getitem, (call, 0))
        call.meta["val"] = (node.meta["val"],) * (2 if returns_input else 1)
        element.meta = dict(node.meta)
        node.replace_all_uses_with(element)
        graph.graph.erase_node(node)
    return graph


def test_what_was_outlined_is_legal():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=False)
    split.verify()


def test_a_body_that_returns_its_input_is_caught():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=True)
    with pytest.raises(VerifyError, match="body body returns its own input x"):
        split.verify()


def test_a_body_that_computes_another_value_is_caught():
    split = split_of("mlp")
    outlined(split.forward, "aten.tanh", returns_input=False)
    calls(split.forward.body)[0].target = aten.sin.default
    with pytest.raises(VerifyError, match="is not the value"):
        split.verify()


def test_nested_regions_are_numbered_through():
    split = capture(Nested(), X)
    assert calls(split.joint, "invoke_subgraph")
    try:
        split.verify()
    except VerifyError as error:  # torch's own bodies may return inputs and memory twice; nothing else may be wrong
        known = ("returns its own input", "returns the memory of")
        assert all(any(what in breach for what in known) for breach in error.breaches)


# --- parts ----------------------------------------------------------------------------------------------


def cut(written: str, owner: str) -> fx.GraphModule:
    """Half of what `owner` names, read after a write to what `written` names."""
    graph = fx.Graph()
    nodes = {"input": graph.placeholder("x")}
    nodes["whole"] = graph.call_function(aten.mul.Tensor, (nodes["input"], 2.0))
    nodes["other"] = graph.call_function(aten.mul.Tensor, (nodes["input"], 3.0))
    shown = graph.call_function(aten.slice.Tensor, (nodes[owner], 1, 0, 4))
    if written:
        graph.call_function(aten.zero_.default, (nodes[written],))
    made = graph.call_function(aten.add.Tensor, (shown, 1.0))
    graph.output((made, nodes["other"]))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 4 if node in (shown, made) else 8)
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("owner", ["whole", "input"])
@pytest.mark.parametrize("written", ["", "whole", "other", "input"])
def test_a_part_is_the_view_where_nothing_writes_to_it(written, owner):
    before = cut(written, owner)
    verify_graph(before, snapshot(before), pass_name="copy")
    after = snapshot(before)
    (shown,) = calls(after, "aten.slice")
    with after.graph.inserting_after(shown):
        part = after.graph.call_function(torch.ops.memgraph.part.default, (shown,))
    part.meta = dict(shown.meta)
    shown.replace_all_uses_with(part, delete_user_cb=lambda reader: reader is not part)
    if owner == "whole" and written in ("", "input"):
        verify_graph(before, after, pass_name="settle")
    else:  # of an input the caller may hold another view
        with pytest.raises(VerifyError, match="is not the value"):
            verify_graph(before, after, pass_name="settle")
