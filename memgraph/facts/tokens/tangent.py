"""What lies between a region's forward and its backward, and whether the forward can form the gradient."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from torch import fx

from memgraph.facts.operators import qualified_name
from memgraph.facts.tokens.graph import TokenGraph
from memgraph.facts.tokens.kinds import PRODUCTS
from memgraph.facts.tokens.linear import linear
from memgraph.facts.tokens.nodes import shape_of

# Fewer operators than this lie between a loss and its gradient; between an MLP and its gradient lies the model.
BETWEEN = 256


class DependentForward:
    """The region's own nodes of the forward, and the nodes of the forward that depend on them.

    Nodes are asked for one by one: all that depend on an early region are most of the graph, and the regions are many.
    """

    def __init__(self, graph: TokenGraph, own: Collection[fx.Node]) -> None:
        self._graph = graph
        self._known = dict.fromkeys(set(own) - graph.backward, True)
        self._first = min((graph.place[node] for node in self._known), default=len(graph.place))

    def __contains__(self, asked: fx.Node) -> bool:
        known, pending = self._known, [asked]
        while pending:
            node = pending[-1]
            if node in known:
                pending.pop()
            elif node in self._graph.backward or self._graph.place[node] <= self._first:
                known[node] = False
            elif unknown := [read for read in node.all_input_nodes if read not in known]:
                pending += unknown
            else:
                known[node] = any(known[read] for read in node.all_input_nodes)
        return known[asked]


def thin_between(
    graph: TokenGraph, members: Collection[fx.Node], inputs: Sequence[fx.Node], dependent: Container[fx.Node]
) -> set[fx.Node]:
    """The nodes between the region's forward and its backward; none of them if they are many.

    inputs: of the region.  dependent: the forward's nodes that depend on the region.
    """
    pending = [node for node in inputs if node in graph.backward]
    found: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in found or node.op != "call_function":
            continue
        if qualified_name(node.target) in PRODUCTS or len(found) == BETWEEN:
            return set()  # no loss: another region covers it
        found.add(node)
        reads = [read for read in node.all_input_nodes if read not in members]
        pending += [read for read in reads if read in graph.backward or read in dependent]
    after: set[fx.Node] = set()
    for node in graph.in_order(found):
        if any(read in dependent or read in after for read in (node, *node.all_input_nodes)):
            after.add(node)
    return after


def one_tangent(
    graph: TokenGraph, members: Collection[fx.Node], inputs: Sequence[fx.Node], dependent: Container[fx.Node]
) -> tuple[str, tuple[str, ...]]:
    """The one scalar tangent that the region's backward depends on, and the nodes in between; "" if there is none."""
    backward = graph.backward
    pending = [node for node in inputs if node in backward]
    chain: set[fx.Node] = set()
    tangents: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in chain:
            continue
        if node.op == "placeholder":
            tangents.add(node)
            continue
        chain.add(node)
        for read in node.all_input_nodes:
            if read in dependent:
                return "", ()  # the gradient needs something of all tokens' forward
            if read in backward:
                pending.append(read)
    if len(tangents) != 1 or shape_of(tangent := tangents.pop()) != ():
        return "", ()
    moving = chain | {tangent} | {node for node in members if node in backward} - graph.dead
    if not all(linear(node, moving) for node in moving - {tangent}):
        return "", ()  # a gradient that is clipped, say, is not the one for a tangent of 1, scaled
    return tangent.name, tuple(node.name for node in graph.in_order(chain))
