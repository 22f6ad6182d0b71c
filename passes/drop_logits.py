"""Drop the logits that a function returns beside its loss, where the user asks for it and only the loss needs them.

    before:  hidden -> head -> logits -> loss               returns loss, logits
    after:   hidden -> head -> logits -> loss; poison()     returns loss, a tensor of the logits' shape in the memory of
                                                            one number, not-a-number wherever it is read

The pass rewrites Dynamo's graph before autograd sees it: a value that is not returned needs no gradient of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import memgraph.runtime  # noqa: F401  registers the operators
from memgraph.base import compat
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten
from memgraph.planner.decisions import Refusal


def drop_logits(captured: Captured, plan: EarlyPlan) -> Rewritten[Captured]:
    """Drop the logits where the plan asks for it; refused where there are none, or their sizes are symbolic."""
    if not plan.drop_logits:
        return Rewritten(captured, modified=False)
    found = find_logits(captured.module, captured.inputs)
    if found is None:
        return _refused(
            captured, "the function returns no value from which its loss alone is computed, without weights in between"
        )
    shape = found.meta["example_value"].shape
    if not all(isinstance(size, int) for size in shape):
        return _refused(captured, f"the sizes of {found.name} are symbolic")
    note = f"the output {found.name} {list(shape)} was dropped: it reads as not-a-number"
    after = Captured(_without(captured.module, found), captured.inputs)
    return Rewritten(after, modified=True, notes=(note,))


def _refused(captured: Captured, reason: str) -> Rewritten[Captured]:
    return Rewritten(captured, modified=False, refusals=(Refusal("tile: {'logits': 'drop'}", reason),))


def _without(gm: fx.GraphModule, output_value: fx.Node) -> fx.GraphModule:
    """A copy of a graph that returns a poisoned tensor in place of one of its outputs."""
    value = output_value.meta["example_value"]
    copy = compat.copy_graph(gm)
    (logits,) = (node for node in copy.graph.nodes if node.name == output_value.name)
    output = copy.graph.output_node()
    with copy.graph.inserting_before(output):
        arguments = (list(value.shape), value.dtype, value.device)
        poison = copy.graph.call_function(torch.ops.memgraph.poison.default, arguments)
    with compat.fake_mode_of([value]), torch.no_grad():
        poison.meta["example_value"] = torch.ops.memgraph.poison.default(*arguments)
    output.args = (fx.map_arg(output.args[0], lambda read: poison if read is logits else read),)
    copy.recompile()
    return copy


def find_logits(gm: fx.GraphModule, inputs: Any) -> fx.Node | None:
    """The largest output from which a scalar output is computed through nothing that reads a parameter, or None."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    weights = {node for node, given in zip(placeholders, inputs, strict=False) if isinstance(given, torch.nn.Parameter)}
    weights |= set(gm.graph.find_nodes(op="get_attr"))
    returned = [node for node in gm.graph.output_node().all_input_nodes if _floating(node)]
    losses = {node for node in returned if node.meta["example_value"].numel() == 1}
    candidates = [node for node in returned if node not in losses and _leads(node, losses, weights)]
    return max(candidates, key=lambda node: node.meta["example_value"].numel(), default=None)


def _floating(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and node.op.startswith("call_")


def _leads(node: fx.Node, losses: set[fx.Node], weights: set[fx.Node]) -> bool:
    """Whether a loss is computed from a value without reading a parameter on the way."""
    below, pending = set(), list(node.users)
    while pending:
        user = pending.pop()
        if user not in below and user.op != "output":
            below.add(user)
            pending += user.users
    above, pending = set(), list(below & losses)
    while pending:
        read = pending.pop()
        if read not in above and read in below:
            above.add(read)
            pending += read.all_input_nodes
    return bool(above) and not any(weights.intersection(step.all_input_nodes) for step in above)
