"""Tell attention that it is causal, in place of a mask that says so.

    before:  mask = positions -> ... -> [batch, 1, n, n];  attention(q, k, v, attn_mask=mask)
    after:   attention(q, k, v, is_causal=True)

The mask is a square of the sequence: 8 GiB in bfloat16 at 65,536 tokens. The pass rewrites Dynamo's graph before
autograd sees it, at the calls that the plan names; which masks are the causal one is found by `memgraph.facts.masks`.
Dropout, scale and grouped heads stay as they are. What made the mask goes away with it, unless somebody else reads it.
"""

from __future__ import annotations

from torch import fx

from memgraph.base import compat
from memgraph.facts.masks.causal import arguments
from memgraph.facts.masks.trace import is_given
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten


def masks(captured: Captured, plan: EarlyPlan) -> Rewritten[Captured]:
    """Take the mask from the calls of attention that the plan says are causal."""
    if not plan.causal:
        return Rewritten(captured, modified=False)
    copy = compat.copy_graph(captured.module)
    nodes = {node.name: node for node in copy.graph.nodes}
    given_up = []
    for name in plan.causal:
        call = nodes[name]
        given = arguments(call)
        given_up.append(given["attn_mask"])
        query, key, value = (given.pop(side) for side in ("query", "key", "value"))
        call.args = (query, key, value)
        call.kwargs = given | {"attn_mask": None, "is_causal": True}
    for mask in dict.fromkeys(given_up):
        _erase(copy.graph, mask)
    copy.recompile()
    several = len(plan.causal) > 1
    calls = f"{len(plan.causal)} calls of attention are" if several else "a call of attention is"
    note = f"{calls} told to be causal, without the mask that says so"
    return Rewritten(Captured(copy, captured.inputs), modified=True, notes=(note,))


def _erase(graph: fx.Graph, mask: fx.Node) -> None:
    """Erase a mask that nothing reads, and what was made for it alone: all of that is known to have no effects."""
    pending = {mask: None}
    while pending:
        node, _ = pending.popitem()
        if not node.users and not is_given(node):
            reads = node.all_input_nodes
            graph.erase_node(node)
            pending |= dict.fromkeys(reads)
