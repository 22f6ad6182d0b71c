"""Views: nodes that show the storage of another node."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from memgraph.facts.operators import family


def is_view(node: fx.Node) -> bool:
    """Whether a node views its first input."""
    return node.op == "call_function" and family(node.target) == "view" and bool(node.all_input_nodes)


def view_base(node: fx.Node, follows: Callable[[fx.Node], bool] = is_view) -> fx.Node:
    """What a node is a view of, through any number of views that the walk follows; the node itself if it is no view."""
    while follows(node):
        node = node.all_input_nodes[0]
    return node
