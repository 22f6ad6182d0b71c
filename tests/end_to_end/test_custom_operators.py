"""Operators that memgraph does not know run as often as they did: they may draw, count, log or communicate."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import memgraph
from memgraph.base import compat
from memgraph.base.errors import BudgetError, PlanWarning, VerifyError
from memgraph.facts.actions import Recompute, Save
from memgraph.facts.joint import read_joint
from memgraph.machine.hardware import built_in
from memgraph.passes.graphs import Joint, Split
from memgraph.passes.partition import partition
from memgraph.passes.recompute import recompute
from memgraph.planner.explain import make_plan
from memgraph.planner.solve import Planner
from memgraph.verify.rewrite import snapshot, verify_graph, verify_partition
from tests.support.custom_operators import LAYERS, RUNS, SILU, Layers, X, drop, pair, seeded, silu, tagged
from tests.support.graphs import why_fixed
from tests.support.harness import Eager, assert_bitwise, gradients
from tests.support.lanes import slow_but
from tests.support.splits import calls, capture


def step(module: nn.Module, backend) -> tuple[list[torch.Tensor], Counter[str]]:
    """One compiled step: loss and gradients, and how often each operator ran."""
    RUNS.clear()
    return gradients(module, backend, X), RUNS.copy()


def tight(**options) -> Eager:
    return Eager(last=True, **options)


# --- nothing runs twice that nobody has declared ----------------------------------------------------------


@pytest.mark.parametrize(
    "budget", slow_but([{"fraction": 0.7}, {"fraction": 0.55}, {"last": True}], fast=[{"last": True}]), ids=str
)
@pytest.mark.parametrize("act", [drop, silu, seeded, lambda x: sum(pair(x))], ids=["draws", "counts", "seeded", "pair"])
def test_runs_and_gradients_are_those_of_the_unplanned_step(act, budget):
    plain, planned = Eager(), Eager(**budget)
    want, runs = step(Layers(act), plain)
    got, again = step(Layers(act), planned)
    assert again == runs and set(runs.values()) == {LAYERS}
    assert_bitwise(got, want)
    assert planned.planned[-1].plan.saved != plain.planned[-1].plan.saved, "nothing was planned: nothing was tested"


def test_the_report_says_why_and_how_to_declare_it():
    planned = tight()
    step(Layers(silu), planned)
    saved = [decision for decision in planned.planned[-1].plan.decisions if isinstance(decision.action, Save)]
    reasons = {decision.why for decision in saved if decision.name.startswith("silu")}
    assert reasons == {f"calls {SILU}, which is not declared repeatable (option 'repeatable': ['{SILU}'])"}


# --- declared by the user, by a tag -----------------------------------------------------------------------


@pytest.mark.parametrize("repeatable", slow_but([[SILU], ["hidden::*"], ["hidden::si?u"]], fast=[[SILU]]), ids=str)
def test_what_is_declared_is_recomputed(repeatable):
    want, runs = step(Layers(silu), Eager())
    got, again = step(Layers(silu), tight(repeatable=repeatable))
    assert again[SILU] > runs[SILU] == LAYERS
    assert_bitwise(got, want)


@pytest.mark.slow
def test_what_its_author_tags_pointwise_is_recomputed():
    want, _ = step(Layers(tagged), Eager())
    got, again = step(Layers(tagged), tight())
    assert again["hidden::tagged"] > LAYERS
    assert_bitwise(got, want)


def test_what_is_tagged_to_draw_is_not_even_if_declared():
    want, _ = step(Layers(seeded), Eager())
    got, again = step(Layers(seeded), tight(repeatable=["hidden::*"]))
    assert again["hidden::seeded"] == LAYERS
    assert_bitwise(got, want)


def test_a_declaration_of_what_there_is_not_is_refused_in_the_report():
    planned = tight(repeatable=["hidden::sliu", "hidden::*", "nowhere::*"])
    step(Layers(silu), planned)
    refused = {refusal.what: refusal.reason for refusal in planned.planned[-1].refusals}
    assert "did you mean 'hidden::silu'" in refused["option 'repeatable': 'hidden::sliu'"]
    assert "no operator of that name" in refused["option 'repeatable': 'nowhere::*'"]
    assert "option 'repeatable': 'hidden::*'" not in refused


# --- rules and the user's own checkpoint ------------------------------------------------------------------


def test_a_rule_is_no_declaration():
    """A module's path says nothing about the operators in it."""
    rules = {"layers.*": "recompute"}
    want, runs = step(Layers(silu), Eager())
    planned = Eager(rules=rules)
    got, again = step(Layers(silu), planned)
    assert again == runs
    assert_bitwise(got, want)
    refused = [r.reason for r in planned.planned[-1].refusals if "rule 'layers.*'" in r.what]
    assert len(refused) == LAYERS and all(f"calls {SILU}, which is not declared" in reason for reason in refused)
    declared = Eager(rules=rules, repeatable=[SILU])
    got, again = step(Layers(silu), declared)
    assert again[SILU] == 2 * LAYERS and not declared.planned[-1].refusals
    assert_bitwise(got, want)


def test_a_rule_about_an_operator_of_two_outputs():
    planned = Eager(rules={"layers.*": "recompute"})
    _, runs = step(Layers(lambda x: sum(pair(x))), planned)
    assert runs["hidden::pair"] == LAYERS
    assert any("hidden::pair" in refusal.reason for refusal in planned.planned[-1].refusals)


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_checkpoint_of_the_users_own_is_obeyed(last):
    """It runs its operators again without memgraph, too: once more, whatever the plan."""

    def around(layer, x):
        return checkpoint(layer, x, use_reentrant=False)

    want, _ = step(Layers(silu, around), "eager")  # torch 2.11's backend of that name runs them once
    got, runs = step(Layers(silu, around), Eager(last=last))
    assert runs == {SILU: 2 * LAYERS}
    assert_bitwise(got, want)


# --- the verifier has a view of its own -------------------------------------------------------------------


def planned_wrongly(module: nn.Module) -> tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule, int]:
    """The joint graph, and a forward and a backward that run whatever `hidden` operators there are once more."""
    found = []

    class Wrong(Eager):
        def partition(self, joint, joint_inputs, **arguments):
            before, count = snapshot(joint), arguments["num_fwd_outputs"]
            split = compat.stock_partition(joint, joint_inputs, **arguments)
            told = {"num_fwd_outputs": count, "hardware": built_in("cpu")}
            facts = read_joint(joint, *split, **told, repeatable=("hidden::*",))
            planner = Planner(facts)
            plan = make_plan(facts, planner.smallest(), planner.stock)
            given = Split(Joint(joint, count, tuple(arguments.get("static_lifetime_input_indices") or ())), *split)
            made = recompute(partition(given, plan).graphs, plan).graphs
            found.append((before, made.forward, made.backward, count))
            return split

    step(module, Wrong())
    return found[-1]


def test_a_plan_that_runs_an_operator_again_is_refused_whatever_the_facts_say():
    before, forward, backward, count = planned_wrongly(Layers(drop))
    told = {"num_fwd_outputs": count, "pass_name": "recompute"}
    with pytest.raises(VerifyError, match="hidden::drop is not declared repeatable.*once more.*in the backward"):
        verify_partition(before, forward, backward, **told)
    with pytest.raises(VerifyError, match="hidden::drop"):
        verify_partition(before, forward, backward, **told, repeatable=("hidden::silu",))
    verify_partition(before, forward, backward, **told, repeatable=("hidden::drop",))


def graph_of(function, *inputs: torch.Tensor) -> fx.GraphModule:
    """A traced graph with metadata."""
    graph = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*inputs)
    graph.graph.output_node().args = ([*graph.graph.output_node().all_input_nodes],)
    graph.recompile()
    return graph


def run_again(graph: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    """A copy of a graph in which the last reader of a node reads a second run of it."""
    changed = snapshot(graph)
    node = next(other for other in changed.graph.nodes if other.name == node.name)
    reader = list(node.users)[-1]
    with changed.graph.inserting_before(reader):
        again = changed.graph.node_copy(node)
    reader.replace_input_with(node, again)
    changed.recompile()
    return changed


def test_the_verifier_counts_the_runs_of_collectives():
    graph = fx.Graph()
    x = graph.placeholder("x")
    reduced = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
    waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (reduced,))
    first = graph.call_function(torch.ops.aten.sin.default, (waited,))
    second = graph.call_function(torch.ops.aten.cos.default, (waited,))
    graph.output((first, second))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, device="meta")
    module = fx.GraphModule({}, graph)
    for node in (reduced, waited):
        assert why_fixed(node) == why_fixed(node, ["_c10d_functional::*"]) == "is a collective"
    verify_graph(module, snapshot(module), pass_name="a copy")
    with pytest.raises(VerifyError, match="_c10d_functional::wait_tensor is not declared"):
        verify_graph(module, run_again(module, waited), pass_name="a pass")


def test_equal_calls_that_are_merged_are_legal():
    """Inductor's partitioner merges them, plan or no plan."""
    twice = graph_of(lambda x: (drop(x).sin(), drop(x).cos()), X)
    once = graph_of(lambda x: ((y := drop(x)).sin(), y.cos()), X)
    verify_graph(twice, once, pass_name="merge")
    with pytest.raises(VerifyError, match="hidden::drop"):
        verify_graph(once, twice, pass_name="a pass")


# --- bodies -----------------------------------------------------------------------------------------------


def nested(act):
    @torch.compiler.nested_compile_region
    def region(x):
        return act(x.sin()) * 2

    return region


ACTS = {"silu": (silu, f"calls {SILU}"), "tagged": (tagged, ""), "tanh": (torch.tanh, "")}


@pytest.mark.slow
@pytest.mark.parametrize("act, why", ACTS.values(), ids=ACTS)
def test_nested_regions_are_looked_into(act, why):
    joint = capture(Layers(nested(act)), X).joint
    regions = calls(joint, "invoke_subgraph")
    assert {why_fixed(call)[: len(why)] for call in regions} | {""} == {"", why}
    assert not any(why_fixed(call, ["hidden::*"]) for call in regions)


@pytest.mark.parametrize("act, repeats", [(silu, False), (tagged, True)], ids=["undeclared", "tagged"])
def test_branches_are_looked_into(act, repeats):
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: act(x) * 2, lambda x: x.sin(), (x,))

    with torch.no_grad():
        graph = graph_of(lambda x: ((y := branches(x)).exp(), y.cos()), X)
    (call,) = calls(graph, "cond")
    assert why_fixed(call).startswith("" if repeats else f"calls {SILU}") and bool(why_fixed(call)) != repeats
    assert why_fixed(call, [SILU]) == ""
    after = graph_of(lambda x: (branches(x).exp(), branches(x).cos()), X)
    if repeats:
        verify_graph(graph, after, pass_name="a pass")
    else:
        with pytest.raises(VerifyError, match=f"{SILU} is not declared repeatable"):
            verify_graph(graph, after, pass_name="a pass")


@pytest.mark.parametrize(
    "name, reason",
    [("with_effects", "has side effects"), ("print", "has side effects"), ("call_torchbind", "has side effects"),
     ("run_const_graph", "calls higher_order::run_const_graph")],
)  # fmt: skip
def test_other_higher_order_operators_run_once(name, reason):
    node = fx.Graph().call_function(getattr(torch.ops.higher_order, name), ())
    assert why_fixed(node).startswith(reason)


class Kernel:
    """Stands for an autotuned Triton kernel: torch finds the function in it by its attribute."""

    def __init__(self) -> None:
        def add_one(pointer):
            return pointer

        self.fn = type("Compiled", (), {"fn": staticmethod(add_one), "__name__": "add_one"})()


def test_triton_kernels_are_known_by_the_name_of_their_function():
    from torch._higher_order_ops import triton_kernel_wrap

    index = triton_kernel_wrap.kernel_side_table.add_kernel(Kernel())
    target = triton_kernel_wrap.triton_kernel_wrapper_functional
    node = fx.Graph().call_function(target, (), {"kernel_idx": index, "kwargs": {}})
    assert "calls triton::add_one, which is not declared" in why_fixed(node)
    assert why_fixed(node, ["triton::add_one"]) == why_fixed(node, ["triton::*"]) == ""
    assert "triton::add_one" in compat.operator_names()


# --- through Inductor -------------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.slow
@pytest.mark.parametrize("act", [drop, silu], ids=["draws", "counts"])
def test_through_inductor(act):
    def run(backend, **more):
        module = Layers(act)
        RUNS.clear()
        torch._dynamo.reset()
        call = torch.compile(module, backend=backend, **more)
        torch.manual_seed(1)
        loss = call(x)
        loss.backward()
        return [loss.detach(), *(p.grad for p in module.parameters())], RUNS.copy()

    x = X.repeat(64, 1)  # activations of 512 KiB: what an error adds to the minimum that it names is little beside them
    want, runs = run("inductor")
    with pytest.raises(BudgetError) as refused:
        run("memgraph", options={"budget": 1e-6, "cache": False, "strict": True})
    # What a custom operator holds within itself is in no plan: a note says so, and a warning where that breaks it.
    told = pytest.warns(PlanWarning, match="has reached") if act is drop else contextlib.nullcontext()
    with told:
        got, again = run("memgraph", options={"budget": refused.value.minimum, "cache": False})
    assert any("hidden::" in note and "not known" in note for note in memgraph.report().notes)
    assert any(isinstance(decision.action, Recompute) for decision in memgraph.report().decisions)
    assert again == runs
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left, right)
