"""Ends of kernels put into both graphs: they compute nothing, and change nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import fx

from memgraph.passes.kernel_ends import kernel_ends
from memgraph.passes.offload import offload
from memgraph.passes.recompute import recompute
from memgraph.planner.decisions import KernelEnd, Plan, Transfer
from memgraph.verify.rewrite import verify_partition
from tests.passes.test_partition import ORDERED, Chain, cut
from tests.support.graphs import capture_module
from tests.support.printer import golden, text

ENDS = (KernelEnd("forward", "mul_1", ("sin", "mul")), KernelEnd("backward", "mul_2", ("exp",)))


@pytest.fixture
def chain():
    return capture_module(Chain(), (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)))


def rewritten(chain, ends=ENDS, **rest):
    plan = Plan(("primals_1", "exp"), ORDERED[1:], kernel_ends=ends, **rest)
    return kernel_ends(recompute(cut(chain, "primals_1", "exp"), plan).graphs, plan)


def test_what_it_writes(chain):
    found = rewritten(chain)
    assert found.modified
    assert text(found.graphs.forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        kernel_end_default = memgraph.kernel_end.default([sin, mul])
        mul_1 = aten.mul.Tensor(sin, exp)
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, primals_1, exp
    """)
    backward = [node.name for node in found.graphs.backward.graph.nodes]
    assert backward[backward.index("kernel_end_default") + 1] == "mul_2"


def test_the_verifier_takes_it_for_nothing_and_it_stays(chain):
    graphs = rewritten(chain).graphs
    verify_partition(chain.before, graphs.forward, graphs.backward, num_fwd_outputs=1, pass_name="kernel_ends")
    graphs.forward.graph.eliminate_dead_code()
    assert "kernel_end" in text(graphs.forward)


def test_the_interpreter_runs_it_and_the_bits_stay(chain):
    graphs, plain = rewritten(chain).graphs, rewritten(chain, ends=()).graphs
    given = torch.randn(2, 2), torch.randn(2, 2)
    for ended, other in zip(
        fx.Interpreter(graphs.forward).run(*given), fx.Interpreter(plain.forward).run(*given), strict=True
    ):
        assert torch.equal(ended, other)


def test_what_a_copy_has_given_up_is_not_read(chain):
    """Only at the first end does the forward still have exp; the second stands behind the end of its copy."""
    ends = (KernelEnd("forward", "mul", ("exp",)), KernelEnd("forward", "sum_1", ("exp", "mul_1")))
    moved = (Transfer("exp", 16, "host", "mul_1", ("mul_2", 0), ("mul_2", 0)),)
    plan = Plan(("primals_1", "exp"), ORDERED[1:], transfers=moved, kernel_ends=ends)
    split = recompute(cut(chain, "primals_1", "exp"), plan).graphs
    split = offload(dataclasses.replace(split, settings={"host": "{}"}), plan).graphs
    graphs = kernel_ends(split, plan).graphs
    assert text(graphs.forward) == golden("""
        inputs primals_1, primals_2
        exp = aten.exp.default(primals_2)
        offload_start_default = memgraph.offload_start.default(exp, 'exp', 'host', '{}')
        kernel_end_default = memgraph.kernel_end.default([exp])
        mul = aten.mul.Tensor(primals_1, exp)
        sin = aten.sin.default(mul)
        mul_1 = aten.mul.Tensor(sin, exp)
        exp_held = memgraph.offload_finish.default(offload_start_default, exp, 'host')
        kernel_end_default_1 = memgraph.kernel_end.default([mul_1])
        sum_1 = aten.sum.default(mul_1)
        outputs sum_1, primals_1, exp_held
    """)
    verify_partition(chain.before, graphs.forward, graphs.backward, num_fwd_outputs=1, pass_name="kernel_ends")


def test_without_ends_and_for_inductors_own_partition_nothing_is_done(chain):
    assert not rewritten(chain, ends=()).modified
    assert not rewritten(chain, stock=True).modified


def test_an_operator_that_is_not_there_is_an_error(chain):
    with pytest.raises(KeyError, match="mul_99"):
        rewritten(chain, ends=(dataclasses.replace(ENDS[0], before="mul_99"),))
