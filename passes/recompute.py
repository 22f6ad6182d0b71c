"""Put the backward's operators into the plan's order, with a node for each copy that the plan wants.

    before:  m = mask(); a = g2(m, dz); ... ; b = g1(m, dy)          m lives from the first use to the last
    after:   m = mask(); a = g2(m, dz); ... ; m_copy1 = mask(); b = g1(m_copy1, dy)

The plan says which copy an operator reads: the edges of the new graph come from the plan, and the order follows them.
"""

from __future__ import annotations

import dataclasses

from torch import fx

from memgraph.base import compat
from memgraph.passes.graphs import Rewritten, Split
from memgraph.planner.decisions import Plan, node_name


def recompute(split: Split, plan: Plan) -> Rewritten[Split]:
    """Order the backward as the plan does.  Raises ValueError where graph and plan hold different operators."""
    if plan.stock:
        return Rewritten(split, modified=False)
    backward = _ordered(split.backward, plan)
    if _order(backward) == _order(split.backward):
        return Rewritten(split, modified=False)
    return Rewritten(dataclasses.replace(split, backward=backward), modified=True)


def _order(gm: fx.GraphModule) -> list[tuple[str, list[str]]]:
    """The operators of a graph, each with what it reads: all that this pass may change."""
    return [(node.name, [read.name for read in node.all_input_nodes]) for node in gm.graph.nodes]


def _ordered(backward: fx.GraphModule, plan: Plan) -> fx.GraphModule:
    """A new backward with the plan's operators and copies, in the plan's order."""
    old = {node.name: node for node in backward.graph.nodes}
    graph = fx.Graph()
    new: dict[tuple[str, int], fx.Node] = {}
    for node in backward.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            new[node.name, 0] = graph.node_copy(node)
    for step in plan.backward:
        if (step.name, 0) in new and step.copy == 0:
            continue
        node = old.get(step.name)
        if node is None:
            raise ValueError(f"the plan runs {step.name}, which the backward does not hold")
        copies = dict(zip(node.all_input_nodes, step.reads, strict=True))
        source = lambda arg, copies=copies: new[arg.name, copies[arg]]  # noqa: E731
        made = graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, source),
            fx.map_arg(node.kwargs, source),
            name=node_name(step.name, step.copy),
            type_expr=node.type,
        )
        made.meta = dict(node.meta)
        new[step.name, step.copy] = made
    missing = [name for name, node in old.items() if node.op == "call_function" and (name, 0) not in new]
    if missing:
        raise ValueError(f"the backward holds operators that the plan does not run: {', '.join(missing[:5])}")
    (output,) = backward.graph.find_nodes(op="output")
    last = {step.name: step.copy for step in plan.backward}
    graph.output(fx.map_arg(output.args[0], lambda arg: new[arg.name, last.get(arg.name, 0)]))
    next(iter(graph.find_nodes(op="output"))).meta.update(output.meta)
    return compat.raise_getitems(compat.graph_module(backward, graph))
