"""Cut the joint graph into a forward and a backward at the plan's saved values.

    joint:     y = f(x); z = g(y); ...; dz -> dy = g'(dz, y); dx = f'(dy, x)

    saved {x}: forward   y = f(x); z = g(y)                 -> z, x
               backward  x, dz: y = f(x); dy = g'(dz, y); dx = f'(dy, x)

The backward computes again what it needs and does not get. The recompute pass puts that recomputation in order. The
forward runs in the plan's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import fx

from memgraph.base import compat
from memgraph.passes.graphs import Rewritten, Split
from memgraph.planner.decisions import Plan


def partition(split: Split, plan: Plan) -> Rewritten[Split]:
    """Cut the joint graph anew, unless Inductor's own partition stands.

    The forward returns its `num_fwd_outputs` outputs, then the saved tensors, then the saved symbols; the backward
    takes symbols, tensors and tangents in that order.  Raises KeyError where the plan saves a value that is not there,
    and ValueError where it runs an operator of the forward and not all that this reads.
    """
    if plan.stock:
        return Rewritten(split, modified=False)
    joint = split.joint.module
    nodes = {node.name: node for node in joint.graph.nodes}
    saved = [nodes[name] for name in plan.saved]
    tensors = [node for node in saved if isinstance(node.meta.get("val"), torch.Tensor)]
    placeholders = [node for node in joint.graph.nodes if node.op == "placeholder"]
    forward, backward = compat.extract_forward_backward(
        joint,
        [node for node in tensors if node.op != "get_attr"],
        [node for node in saved if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)],
        num_fwd_outputs=split.joint.num_fwd_outputs,
        static_inputs=[placeholders[i] for i in split.joint.static_inputs],
    )
    # The extraction duplicates each operator of the forward that the backward could run and that FX takes for one with
    # an effect: assertions and random operators (under Inductor's fallback_random also attention without dropout). Once
    # a step is enough: an operator that the plan does not run in the backward stays in the forward alone.
    steps = {step.name for step in plan.backward}
    backward.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or node.name in steps)
    backward.recompile()
    put_in_order(forward, plan.forward)
    return Rewritten(dataclasses.replace(split, forward=forward, backward=backward), modified=True)


def put_in_order(forward: fx.GraphModule, names: Sequence[str]) -> None:
    """Put the operators of a new forward into the plan's order, in place; without names it stays as it is.

    The extraction keeps each assertion, and what it alone reads, of which no plan knows. They stay in their own order,
    each behind what it reads. Names that the forward does not hold are passed over: the extraction has left out what
    nothing reads. Raises ValueError where an operator of the plan reads what the plan does not run.
    """
    planned = {name: place for place, name in enumerate(names)}
    place: dict[fx.Node, tuple[int, bool, int]] = {}
    latest = -1  # the place in the plan behind which the last operator stands that is not planned
    for n, node in enumerate(forward.graph.nodes):
        if node.op in ("placeholder", "output") or not planned:
            continue
        read = [place[each] for each in node.all_input_nodes if each in place]
        if node.name in planned:
            place[node] = (planned[node.name], False, n)
            if any(not_planned for _, not_planned, _ in read):
                raise ValueError(f"the plan runs {node.name}, and not all that it reads")
        else:
            latest = max([latest, *(before for before, _, _ in read)])
            place[node] = (latest, True, n)
    (output,) = forward.graph.find_nodes(op="output")
    for node in sorted(place, key=place.__getitem__):
        output.prepend(node)
    forward.recompile()
