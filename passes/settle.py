"""Have the sums of a gradient written to memory one by one, so that what they add can be freed.

    before:  s1 = m0 + m1; s2 = s1 + m2; ...; dW = sn      one kernel of all additions: m0 to mn are live until it runs
    after:   s1* = m0 + m1; s2* = s1* + m2; ...            * written: m0, m1 and s1 are freed as soon as they are added

The additions are those that the plan names (`Plan.settled`): the gradient of a value that is read often, as a weight
of a cell that is unrolled over time. No operator is added, no order of additions changed. Inductor would fuse the
additions again if it could; `KeepOrder` has each matrix product wait for the sums before it, which makes that
impossible.
"""

from __future__ import annotations

from torch import fx

from memgraph.base import compat
from memgraph.planner.decisions import Plan


def settle(backward: fx.GraphModule, plan: Plan) -> fx.GraphModule:
    """Mark the nodes of a backward that the plan wants written.  Raises ValueError where one is not there."""
    wanted = set(plan.settled)
    for node in backward.graph.nodes:
        if node.name in wanted:
            compat.write_to_memory(node)
            wanted.discard(node.name)
    if wanted:
        raise ValueError(f"the plan writes {', '.join(sorted(wanted)[:5])}, which the backward does not hold")
    return backward
