"""Where a loss leaves tokens out of its logits, the last one as a rule, leave them out of what the head reads.

    before:  logits = linear(hidden, W).float(); logits[..., :-1, :]     the backward pads the gradient of the logits
    after:   logits = linear(hidden[..., :-1, :], W).float()             the backward pads that of the hidden states

The pass rewrites Dynamo's graph if a loss may be tiled. Each row of the logits comes from its own row of the hidden
states, so rows may be left out on either side of the head. Then each token's loss depends on its own rows alone.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten

_HEADS = (torch.nn.functional.linear, compat.C_LINEAR)
# Operators that a head and its loss have between them, entry by entry on one tensor: an upcast, soft-capping.
_METHODS = frozenset(("float", "double", "bfloat16", "half", "to", "type", "contiguous", "tanh", "mul", "div"))
_FUNCTIONS = frozenset((operator.mul, operator.truediv, torch.tanh, torch.mul, torch.div))


def slice_before_head(captured: Captured, plan: EarlyPlan) -> Rewritten[Captured]:
    """Slice the hidden states instead of the logits, where the plan asks for it and there are such slices."""
    found = []
    if plan.slice_before_head:
        found = [(node, chain) for node in captured.module.graph.nodes if (chain := _chain(node))]
    if not found:
        return Rewritten(captured, modified=False)
    copy = compat.copy_graph(captured.module)
    nodes = {node.name: node for node in copy.graph.nodes}
    for cut, chain in found:
        _move(copy.graph, nodes[cut.name], [nodes[step.name] for step in chain])
    copy.recompile()
    return Rewritten(Captured(copy, captured.inputs), modified=True)


def _chain(cut: fx.Node) -> list[fx.Node]:
    """The nodes from the head to the slice; empty unless the slice is the only reader of all of them."""
    if cut.op != "call_function" or cut.target is not operator.getitem or not _rows_only(cut):
        return []
    chain: list[fx.Node] = []
    node = cut.args[0]
    while len(node.users) == 1 and isinstance(node.meta.get("example_value"), torch.Tensor):
        chain.insert(0, node)
        if node.op == "call_function" and node.target in _HEADS:
            return chain if node.args and isinstance(node.args[0], fx.Node) else []
        if not (
            node.op == "call_method"
            and node.target in _METHODS
            or node.op == "call_function"
            and node.target in _FUNCTIONS
        ):
            return []
        tensors = node.all_input_nodes
        if len(tensors) != 1 or node.args[:1] != (tensors[0],):  # given by its keyword, it is no first argument
            return []
        node = tensors[0]
    return []


def _rows_only(cut: fx.Node) -> bool:
    """Whether an index takes slices of rows and leaves the last dimension whole."""
    value = cut.args[0].meta.get("example_value") if isinstance(cut.args[0], fx.Node) else None
    index = cut.args[1]
    if not isinstance(value, torch.Tensor) or not isinstance(index, tuple):
        return False
    plain = all(item is Ellipsis or isinstance(item, slice) for item in index) and not cut.kwargs
    if not plain or any(
        isinstance(part, fx.Node) for item in index if isinstance(item, slice) for part in _parts(item)
    ):
        return False
    whole = slice(None, None, None)
    reaches_last = Ellipsis in index or len(index) == value.dim()
    last_is_whole = not reaches_last or index[-1] in (whole, Ellipsis)
    return last_is_whole and any(item not in (whole, Ellipsis) for item in index)


def _parts(item: slice) -> tuple[Any, Any, Any]:
    return item.start, item.stop, item.step


def _move(graph: fx.Graph, cut: fx.Node, chain: list[fx.Node]) -> None:
    head = chain[0]
    hidden = head.args[0]
    # The same rows; this index does not depend on the length of a row.
    rank = head.meta["example_value"].dim()
    index = _spelled(cut.args[1], rank)
    with graph.inserting_before(head):
        rows = graph.call_function(operator.getitem, (hidden, index))
    rows.meta = dict(head.meta)
    head.update_arg(0, rows)
    with torch.no_grad():
        rows.meta["example_value"] = hidden.meta["example_value"][index]
        for node in chain:
            value = node.meta["example_value"]
            node.meta["example_value"] = value[_spelled(cut.args[1], value.dim())].contiguous()
    cut.replace_all_uses_with(chain[-1])
    graph.erase_node(cut)


def _spelled(index: tuple, rank: int) -> tuple:
    """An index with a slice for every dimension."""
    place = index.index(Ellipsis) if Ellipsis in index else len(index)
    after = index[place + 1 :]
    return (*index[:place], *[slice(None)] * (rank - place - len(after)), *after)
