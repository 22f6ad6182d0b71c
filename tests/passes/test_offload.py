"""The rewrite that lets values leave and return, as text, and the breaches that the verifier finds in it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from memgraph.base.errors import VerifyError
from memgraph.passes.offload import offload
from memgraph.passes.recompute import recompute
from memgraph.planner.decisions import Plan, Transfer
from memgraph.verify.rewrite import verify_partition
from tests.passes.test_partition import ORDERED, Chain, cut
from tests.support.graphs import capture_module
from tests.support.printer import golden, text


@pytest.fixture
def chain():
    return capture_module(Chain(), (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)))


MOVED = (Transfer("exp", 16, "host", "sin", ("mul_2", 0), ("mul_2", 0)),)


def rewritten(chain, transfers=MOVED):
    plan = Plan(("primals_1", "exp"), ORDERED[1:], transfers=transfers)
    split = recompute(cut(chain, "primals_1", "exp"), plan).graphs
    split = offload(dataclasses.replace(split, settings={"host": "{}"}), plan).graphs
    return split.forward, split.backward


def test_what_it_writes(chain):
    forward, backward = rewritten(chain)
    assert text(forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        offload_start_default = memgraph.offload_start.default(exp, 'exp', 'host', '{}')
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        exp_held = memgraph.offload_finish.default(offload_start_default, exp, 'host')
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, primals_1, exp_held
    """)


def check(chain, forward, backward):
    verify_partition(chain.before, forward, backward, num_fwd_outputs=1, pass_name="offload")


def node(graph, name):
    return next(node for node in graph.graph.nodes if name in node.name)


def test_a_value_that_is_read_after_it_was_given_up_is_caught(chain):
    with pytest.raises(VerifyError, match="mul_1 reads exp after exp_held has given it up"):
        check(chain, *rewritten(chain))


LATER = (dataclasses.replace(MOVED[0], finish="mul_1", load=("expand", 0)),)


def test_a_legal_one_passes(chain):
    check(chain, *rewritten(chain, LATER))


def never_finished(forward, backward):
    held, start = node(forward, "exp_held"), node(forward, "offload_start")
    held.replace_all_uses_with(start)
    forward.graph.erase_node(held)


def started_twice(forward, backward):
    start = node(forward, "offload_start")
    with forward.graph.inserting_after(start):
        forward.graph.node_copy(start)


def reloaded_twice(forward, backward):
    start = node(backward, "reload_start")
    with backward.graph.inserting_after(start):
        backward.graph.node_copy(start)


def another_value(forward, backward):
    node(forward, "exp_held").args = (node(forward, "offload_start"), node(forward, "sin"), "host")


def another_shape(forward, backward):
    for name in ("exp_reload_start", "exp_reloaded"):
        called = node(backward, name)
        called.args = tuple([4, 1] if arg == [2, 2] else arg for arg in called.args)


def another_layout(forward, backward):
    for name in ("exp_reload_start", "exp_reloaded"):
        called = node(backward, name)
        called.args = tuple([1, 2] if arg == [2, 1] else arg for arg in called.args)


def not_waited_for(forward, backward):
    node(backward, "exp_reloaded").replace_all_uses_with(node(backward, "reload_start"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (never_finished, "is finished 0 times, not once"),
        (started_twice, "starts a copy that offload_start_default has started"),
        (reloaded_twice, "starts a copy that exp_reload_start has started"),
        (another_value, "gradient 0 .* is not the value"),
        (another_shape, "exp_reloaded is said to be|is not the value"),
        (another_layout, "exp_reloaded is said to be|is not the value"),
        (not_waited_for, "is finished|is not the value"),
    ],
)
def test_a_broken_rewrite_is_caught(chain, break_it, message):
    forward, backward = rewritten(chain, LATER)
    break_it(forward, backward)
    with pytest.raises(VerifyError, match=message):
        check(chain, forward, backward)


def test_what_the_graph_does_not_hold(chain):
    with pytest.raises(KeyError, match="tanh"):
        rewritten(chain, (dataclasses.replace(LATER[0], finish="tanh"),))
    with pytest.raises(ValueError, match="not among the saved outputs"):
        rewritten(chain, (dataclasses.replace(LATER[0], name="sin"),))
