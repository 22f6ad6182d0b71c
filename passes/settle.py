"""Have the sums of a gradient written to memory one by one, so that what they add can be freed.

    before:  s1 = m0 + m1; s2 = s1 + m2; ...; dW = sn      one kernel of all additions: m0 to mn are live until it runs
    after:   s1* = m0 + m1; s2* = s1* + m2; ...            * written: m0, m1 and s1 are freed as soon as they are added

The additions are those that the plan names (`Plan.settled`): the gradient of a value that is read often, as a weight
of a cell that is unrolled over time. No operator is added, no order of additions changed. Inductor would fuse the
additions again if it could; `KeepOrder` has each matrix product wait for the sums before it, which makes that
impossible.
"""

from __future__ import annotations

import dataclasses

from memgraph.base import compat
from memgraph.passes.graphs import Rewritten, Split
from memgraph.planner.decisions import Plan


def settle(split: Split, plan: Plan) -> Rewritten[Split]:
    """Mark the sums that the plan has written to memory.  Raises ValueError where the backward does not hold one."""
    missing = set(plan.settled)
    if plan.stock or not missing:
        return Rewritten(split, modified=False)
    backward = compat.copy_graph(split.backward)
    for node in backward.graph.nodes:
        if node.name in missing:
            compat.write_to_memory(node)
            missing.discard(node.name)
    if missing:
        raise ValueError(f"the plan writes {', '.join(sorted(missing)[:5])}, which the backward does not hold")
    return Rewritten(dataclasses.replace(split, backward=backward), modified=True)
