"""Each rewrite, before and after, as text."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from memgraph.passes.graphs import Split
from memgraph.passes.partition import partition, put_in_order
from memgraph.passes.recompute import recompute
from memgraph.passes.settle import settle
from memgraph.planner.decisions import Plan, Step
from memgraph.verify.rewrite import verify_partition
from tests.support.graphs import capture_module
from tests.support.printer import golden, text


class Chain(nn.Module):
    """Two users of one mask, so that a copy of it can be wanted."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        mask = y.exp()
        return (((x * mask).sin() * mask).sum(),)


@pytest.fixture
def chain():
    return capture_module(Chain(), (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)))


def cut(chain, *saved: str) -> Split:
    return partition(chain.split, Plan(saved, ())).graphs


def verify(captured, split: Split, pass_name: str) -> None:
    verify_partition(captured.before, split.forward, split.backward, num_fwd_outputs=1, pass_name=pass_name)


def steps(*spelled: str) -> tuple[Step, ...]:
    """`"mul:1<0,2"`: the second copy of mul; it reads copy 0 of its first input and copy 2 of the next."""
    found = []
    for step in spelled:
        name, _, reads = step.partition("<")
        name, _, copy = name.partition(":")
        found.append(Step(name, int(copy or 0), tuple(int(r) for r in reads.split(",") if r)))
    return tuple(found)


ORDERED = steps("exp<0", "expand<0", "mul_2<0,0", "mul<0,0", "cos<0", "mul_3<0,0", "mul_4<0,0")
COPIED = steps("exp<0", "expand<0", "mul_2<0,0", "exp:1<0", "mul<0,1", "cos<0", "mul_3<0,0", "exp:2<0", "mul_4<0,2")


def test_joint(chain):
    assert text(chain.joint) == golden("""
        inputs primals_1, primals_2, tangents_1
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        expand = aten.expand.default(tangents_1, [2, 2])
        mul_2 = aten.mul.Tensor(expand, exp)
        cos = aten.cos.default(mul)
        mul_3 = aten.mul.Tensor(mul_2, cos)
        mul_4 = aten.mul.Tensor(mul_3, exp)
        outputs sum_1, mul_4, None
    """)


def test_partition_at_what_is_saved(chain):
    split = cut(chain, "exp", "mul")
    assert text(split.forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, exp, mul
    """)
    assert text(split.backward) == golden("""
        inputs exp, mul, tangents_1
        expand = aten.expand.default(tangents_1, [2, 2])
        mul_2 = aten.mul.Tensor(expand, exp)
        cos = aten.cos.default(mul)
        mul_3 = aten.mul.Tensor(mul_2, cos)
        mul_4 = aten.mul.Tensor(mul_3, exp)
        outputs mul_4, None
    """)


def test_partition_recomputes_what_is_not_saved(chain):
    split = cut(chain, "primals_1", "primals_2")
    assert text(split.forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, primals_1, primals_2
    """)
    assert text(split.backward) == golden("""
        inputs primals_1, primals_2, tangents_1
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        expand = aten.expand.default(tangents_1, [2, 2])
        mul_2 = aten.mul.Tensor(expand, exp)
        cos = aten.cos.default(mul)
        mul_3 = aten.mul.Tensor(mul_2, cos)
        mul_4 = aten.mul.Tensor(mul_3, exp)
        outputs mul_4, None
    """)


FORWARD = ("exp", "mul", "cos", "sin", "mul_1", "sum_1")


def test_partition_orders_the_forward(chain):
    """`cos` is all that the backward needs of `mul`; in the joint graph it stands behind the loss."""
    split = partition(chain.split, Plan(("exp", "cos"), (), forward=FORWARD)).graphs
    assert text(split.forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        cos = aten.cos.default(mul)
        sin = aten.sin.default(mul)
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, exp, cos
    """)
    verify(chain, split, "partition")


def test_partition_refuses_another_graphs_forward(chain):
    names = [name for name in FORWARD if name != "mul"]
    with pytest.raises(ValueError, match="the plan runs sin, and not all that it reads"):
        partition(chain.split, Plan(("exp", "cos"), (), forward=tuple(names)))


def test_assertions_stay_behind_what_they_read_in_their_order():
    """The extraction keeps them; no plan names them."""
    aten, graph = torch.ops.aten, fx.Graph()
    x = graph.placeholder("x")
    sin = graph.call_function(aten.sin.default, (x,))
    cos = graph.call_function(aten.cos.default, (sin,))
    for read in (sin, x):
        graph.call_function(aten._assert_async.default, (graph.call_function(aten.all.default, (read,)),))
    graph.output((cos, graph.call_function(aten.neg.default, (sin,))))
    forward = fx.GraphModule(nn.Module(), graph)
    put_in_order(forward, ("sin_default", "neg_default", "cos_default", "of_another_graph"))
    forward.graph.lint()
    assert text(forward) == golden("""
        inputs x
        sin_default = aten.sin.default(x)
        all_default = aten.all.default(sin_default)
        _assert_async_default = aten._assert_async.default(all_default)
        all_default_1 = aten.all.default(x)
        _assert_async_default_1 = aten._assert_async.default(all_default_1)
        neg_default = aten.neg.default(sin_default)
        cos_default = aten.cos.default(sin_default)
        outputs cos_default, neg_default
    """)


def test_recompute_orders(chain):
    plan = Plan(("primals_1", "primals_2"), ORDERED)
    ordered = recompute(cut(chain, "primals_1", "primals_2"), plan).graphs
    assert text(ordered.backward) == golden("""
        inputs primals_1, primals_2, tangents_1
        exp = aten.exp.default(primals_2)
        expand = aten.expand.default(tangents_1, [2, 2])
        mul_2 = aten.mul.Tensor(expand, exp)
        mul = aten.mul.Tensor(primals_1, exp)
        cos = aten.cos.default(mul)
        mul_3 = aten.mul.Tensor(mul_2, cos)
        mul_4 = aten.mul.Tensor(mul_3, exp)
        outputs mul_4, None
    """)
    verify(chain, ordered, "recompute")


def test_recompute_copies(chain):
    plan = Plan(("primals_1", "primals_2"), COPIED)
    copied = recompute(cut(chain, "primals_1", "primals_2"), plan).graphs
    assert text(copied.backward) == golden("""
        inputs primals_1, primals_2, tangents_1
        exp = aten.exp.default(primals_2)
        expand = aten.expand.default(tangents_1, [2, 2])
        mul_2 = aten.mul.Tensor(expand, exp)
        exp_copy1 = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp_copy1)
        cos = aten.cos.default(mul)
        mul_3 = aten.mul.Tensor(mul_2, cos)
        exp_copy2 = aten.exp.default(primals_2)
        mul_4 = aten.mul.Tensor(mul_3, exp_copy2)
        outputs mul_4, None
    """)
    verify(chain, copied, "recompute")


def test_recompute_takes_a_tuple_apart_where_it_is_made():
    class Normal(nn.Module):
        def forward(self, x):
            return (torch.native_layer_norm(x, (2,), None, None, 1e-5)[0].exp().sum(),)

    captured = capture_module(Normal(), (torch.ones(2, 2, requires_grad=True),), decompose=False)
    order = "native_layer_norm<0 getitem<0 exp<0 detach<0 expand<0 detach_1<0 mul<0,0 getitem_1<0 getitem_2<0 "
    order += "native_layer_norm_backward<0,0,0,0 getitem_3<0"
    plan = Plan(("primals_1",), steps(*order.split()))
    split = partition(captured.split, plan).graphs
    assert text(recompute(split, plan).graphs.backward) == golden("""
        inputs primals_1, tangents_1
        native_layer_norm = aten.native_layer_norm.default(primals_1, [2], None, None, 1e-05)
        getitem = native_layer_norm[0]
        getitem_1 = native_layer_norm[1]
        getitem_2 = native_layer_norm[2]
        exp = aten.exp.default(getitem)
        detach = aten.detach.default(exp)
        expand = aten.expand.default(tangents_1, [2, 2])
        detach_1 = aten.detach.default(detach)
        mul = aten.mul.Tensor(expand, detach_1)
        native_layer_norm_backward = aten.native_layer_norm_backward.default(mul, primals_1, [2], \
            getitem_1, getitem_2, None, None, [True, False, False])
        getitem_3 = native_layer_norm_backward[0]
        outputs getitem_3
    """)


@pytest.mark.parametrize(
    "broken, message",
    [
        (ORDERED + steps("tanh<0"), "the plan runs tanh, which the backward does not hold"),
        (ORDERED[:-1], "the backward holds operators that the plan does not run: mul_4"),
    ],
)
def test_recompute_refuses_another_graphs_plan(chain, broken, message):
    split = cut(chain, "primals_1", "primals_2")
    with pytest.raises(ValueError, match=message):
        recompute(split, Plan(("primals_1", "primals_2"), broken))


def test_partition_refuses_another_graphs_plan(chain):
    with pytest.raises(KeyError, match="tanh"):
        cut(chain, "tanh")


def test_a_draw_is_not_left_in_the_backward():
    """Outside of a compilation, and under Inductor's fallback_random, FX keeps draws that nothing reads."""

    class Drops(nn.Module):
        def forward(self, x):
            return (torch.nn.functional.dropout(x.exp(), 0.5, True).sin().sum(),)

    captured = capture_module(Drops(), (torch.ones(2, 2, requires_grad=True),))
    plan = Plan(("primals_1", "gt"), ())
    split = partition(captured.split, plan).graphs
    assert "rand" in text(split.forward) and "rand" not in text(split.backward)
    verify(captured, split, "partition")


def test_sums_are_marked_to_be_written(chain):
    split = cut(chain, "primals_2", "primals_1")
    names = [node.name for node in split.backward.graph.nodes if node.op == "call_function"]
    marked = settle(split, Plan((), (), settled=(names[1],))).graphs
    found = [n.name for n in marked.backward.graph.nodes if n.meta.get("inductor_realize_to_strides")]
    assert found == [names[1]] and marked.backward.code == split.backward.code
    verify(chain, marked, "settle")
    with pytest.raises(ValueError, match="add_9, which the backward does not hold"):
        settle(split, Plan((), (), settled=("add_9",)))
