"""End kernels where the plan says so.

    before:  s = bmm(q, k); e = exp(s); w = e / sum(e); y = bmm(w, v)                   one kernel: s, e and w at once
    after:   s = bmm(q, k); e = exp(s); kernel_end([e]); w = e / sum(e); y = bmm(w, v)  s is freed before w is made

`kernel_end` does nothing. For Inductor it is an operator that fuses with nothing, at which what it is given has been
written to memory, and `KeepOrder` keeps what stands before it before it. It is not given what has left for another tier
by then: that was written when its copy began, and is gone.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operator
from memgraph.base import compat
from memgraph.facts.views import view_base
from memgraph.passes.graphs import Rewritten, Split
from memgraph.planner.decisions import Phase, Plan


def kernel_ends(split: Split, plan: Plan) -> Rewritten[Split]:
    """Put the plan's ends into both graphs.  Raises KeyError where the plan names an operator that is not there."""
    if plan.stock or not plan.kernel_ends:
        return Rewritten(split, modified=False)
    forward, backward = (_ended(split, phase, plan) for phase in ("forward", "backward"))
    return Rewritten(dataclasses.replace(split, forward=forward, backward=backward), modified=True)


def _ended(split: Split, phase: Phase, plan: Plan) -> fx.GraphModule:
    module: fx.GraphModule = compat.copy_graph(split.forward if phase == "forward" else split.backward)
    nodes = {node.name: node for node in module.graph.nodes}
    parts = module.graph.find_nodes(op="call_function", target=torch.ops.memgraph.part.default)
    nodes |= {part.args[0].name: part for part in parts}  # what is written of a part of a gradient (settle.py)
    for end in plan.kernel_ends:
        if end.phase != phase:
            continue
        gone = _gone(module.graph, nodes[end.before])
        with module.graph.inserting_before(nodes[end.before]):
            written = [nodes[name] for name in end.written if view_base(nodes[name]) not in gone]
            module.graph.call_function(torch.ops.memgraph.kernel_end.default, (written,)).meta["val"] = None
    module.graph.lint()
    module.recompile()
    return module


def _gone(graph: fx.Graph, before: fx.Node) -> set[fx.Node]:
    """The values that copies to another tier have given up before a node."""
    finishes = graph.find_nodes(op="call_function", target=torch.ops.memgraph.offload_finish.default)
    return {view_base(finish.args[1]) for finish in finishes if finish < before}
