"""Make the gradient of a table of each of its readers' gradients, in place of their sum.

    before:  d = d_1 + d_2 + d_3;  dtable = put(zeros, places, view(d))

    after:   dtable_1 = put(zeros, places, view(d_1));  dtable_2 = ...;  dtable = dtable_1 + dtable_2 + dtable_3

T5 looks a bias up for each query and key, and adds it to the scores of all layers: d_1, d_2, ... are as large as the
scores. So each is gone once its own part of the table's gradient is made, and a tile of attention makes that part of a
shard of its queries. Sums of many small numbers come in another order by that, as in tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.tokens.table_gradients import TableGradient, part_name
from memgraph.passes.graphs import Joint, Rewritten, TilePlan
from memgraph.passes.insert import call, erase, mode_of, provenance, sort

aten = torch.ops.aten


def apart(joint: Joint, plan: TilePlan) -> Rewritten[Joint]:
    """Make the gradients of the plan's tables part by part; the sums keep the names of what they replace."""
    if not plan.apart:
        return Rewritten(joint, modified=False)
    gm = compat.copy_graph(joint.module)
    nodes = {node.name: node for node in gm.graph.nodes}
    for gradient in plan.apart:
        _set_apart(gm.graph, nodes, gradient)
    sort(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return Rewritten(dataclasses.replace(joint, module=gm), modified=True)


def _set_apart(graph: fx.Graph, nodes: Mapping[str, fx.Node], gradient: TableGradient) -> None:
    put, total = nodes[gradient.put], nodes[gradient.total]
    between = [nodes[name] for name in gradient.between]
    added: fx.Node | None = None
    for name in gradient.parts:
        with graph.inserting_before(nodes[name].next):
            made = _again(graph, [*between, put], {total: nodes[name]}, name)
            if name == gradient.parts[-1]:
                break
            if added is not None:
                so_far = f"{put.name}_up_to_{name}"
                made = call(graph, mode_of(put), aten.add.Tensor, added, made, name=so_far)
                made.meta |= provenance(put)
            added = made
    put.target, put.args, put.kwargs = aten.add.Tensor, (added, made), {}
    erase(between[-1] if between else total)


def _again(graph: fx.Graph, chain: Sequence[fx.Node], new: dict[fx.Node, fx.Node], part: str) -> fx.Node:
    """A chain of operators, on what stands in `new` for what they read.

    Each gets a name by the part alone: what is found in a graph with these nodes is found again in another one.
    """
    for node in chain:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda read: new.get(read, read))
        name = part_name(node.name, part)
        new[node] = call(graph, mode_of(node), node.target, *args, name=name, **kwargs)
        new[node].meta |= provenance(node)
    return new[chain[-1]]
