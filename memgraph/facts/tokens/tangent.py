"""What lies between a region's forward and its backward: whether the gradient can be formed in the forward, for 1."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.tokens.linear import linear
from memgraph.facts.tokens.region import PRODUCTS, TokenGraph
from memgraph.facts.tokens.states import shape_of

# Between a loss and its gradient are fewer operators than this; between an MLP and its gradient is the model.
BETWEEN = 256


def computed(graph: TokenGraph, own: Collection[fx.Node]) -> set[fx.Node]:
    """What a region's own forward computes, and what of the forward depends on it."""
    found = set(own) - graph.backward
    pending = list(found)
    while pending:
        new = set(pending.pop().users) - found - graph.backward
        found |= new
        pending += new
    return found


def thin_between(
    graph: TokenGraph, members: Collection[fx.Node], inputs: Sequence[fx.Node], computed: Collection[fx.Node]
) -> set[fx.Node]:
    """What the backward's inputs are made of that depends on the region's forward; empty where that is much."""
    pending = [node for node in inputs if node in graph.backward]
    found: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in found or node.op != "call_function":
            continue
        if short_name(node.target) in PRODUCTS or len(found) == BETWEEN:
            return set()  # no loss, but what another region is for
        found.add(node)
        reads = [read for read in node.all_input_nodes if read not in members]
        pending += [read for read in reads if read in graph.backward or read in computed]
    after: set[fx.Node] = set()
    for node in sorted(found, key=graph.place.__getitem__):
        if any(read in computed or read in after for read in (node, *node.all_input_nodes)):
            after.add(node)
    return after


def one_tangent(
    graph: TokenGraph, members: Collection[fx.Node], inputs: Sequence[fx.Node], computed: Collection[fx.Node]
) -> tuple[str, tuple[str, ...]]:
    """The scalar tangent that is all that the region's backward depends on, and the way from it; "" for none."""
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
            if read in computed:
                return "", ()  # the gradient needs something of all tokens' forward
            if read in backward:
                pending.append(read)
    if len(tangents) != 1 or shape_of(tangent := tangents.pop()) != ():
        return "", ()
    dependent = chain | {tangent} | {node for node in members if node in backward} - graph.dead
    if not all(linear(node, dependent) for node in dependent - {tangent}):
        return "", ()  # clipped on the way, say: not the gradient for a tangent of 1, scaled
    order = sorted(chain, key=graph.place.__getitem__)
    return tangent.name, tuple(node.name for node in order)
