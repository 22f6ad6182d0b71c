"""Cut the joint graph into a forward and a backward at the plan's saved values.

    joint:     y = f(x); z = g(y); ...; dz -> dy = g'(dz, y); dx = f'(dy, x)

    saved {x}: forward   y = f(x); z = g(y)                 -> z, x
               backward  x, dz: y = f(x); dy = g'(dz, y); dx = f'(dy, x)

What the backward needs and did not get it computes again, from what it got. The order of that recomputation is the
recompute pass's business.
"""

from __future__ import annotations

import torch
from torch import fx

from memgraph import compat
from memgraph.planner.plan import Plan


def partition(
    joint: fx.GraphModule, plan: Plan, *, num_fwd_outputs: int, static_lifetime_input_indices: list[int] | None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return (forward, backward).

    The forward returns its `num_fwd_outputs` outputs, then the saved tensors, then the saved symbols; the backward
    takes symbols, tensors and tangents in that order.  Raises KeyError where the plan names a value that is not there.
    """
    nodes = {node.name: node for node in joint.graph.nodes}
    saved = [nodes[name] for name in plan.saved]
    tensors = [node for node in saved if isinstance(node.meta.get("val"), torch.Tensor)]
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    forward, backward = compat.extract_forward_backward(
        joint,
        [node for node in tensors if node.op != "get_attr"],
        [node for node in saved if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)],
        num_fwd_outputs=num_fwd_outputs,
        static_inputs=[placeholders[i] for i in static_lifetime_input_indices or ()],
    )
    # FX takes every random operator for one with an effect: those of the forward that the backward could run stay in it
    # unread (under Inductor's fallback_random, attention without dropout and all that it reads too).
    backward.graph.eliminate_dead_code(lambda node: node.is_impure() and not _random(node))
    backward.recompile()
    return forward, backward


def _random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
