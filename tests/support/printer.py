"""A graph as text, for tests that state what a rewrite makes: printed by us, so that a new torch does not change it.

    inputs x, weight
    mm = aten.mm.default(x, weight)
    getitem = split[0]
    outputs mm, None

One line for each operator: its node's name, its qualified name, its arguments. The order is that of the graph.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves


def text(graph: fx.GraphModule) -> str:
    """All operators of a graph, without what torch's code generator adds: unpacking, type marks, deletions."""
    nodes = graph.graph.nodes
    inputs = [node.name for node in nodes if node.op == "placeholder"]
    lines = [_line(node) for node in nodes if node.op not in ("placeholder", "output")]
    (returned,) = (node.args[0] for node in nodes if node.op == "output")
    outputs = tree_leaves(returned, is_leaf=lambda item: item is None)
    return "\n".join([f"inputs {', '.join(inputs)}", *lines, f"outputs {', '.join(map(_spelled, outputs))}"])


def golden(written: str) -> str:
    """A text as a test writes it: indented with the test, and a line that ends in a backslash goes on in the next."""
    return "\n".join(re.sub(r" +", " ", line.strip()) for line in written.strip().splitlines())


def _line(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    if node.target is operator.getitem:
        return f"{node.name} = {_spelled(node.args[0])}[{_spelled(node.args[1])}]"
    arguments = [*map(_spelled, node.args), *(f"{key}={_spelled(value)}" for key, value in node.kwargs.items())]
    return f"{node.name} = {node.target}({', '.join(arguments)})"


def _spelled(argument: Any) -> str:
    if isinstance(argument, fx.Node):
        return argument.name
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(_spelled, argument))}]"
    if isinstance(argument, torch.device):
        return str(argument)
    return repr(argument)
