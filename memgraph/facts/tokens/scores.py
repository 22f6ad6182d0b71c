"""Attention that stands in the graph as operators: a product with queries and keys, weights, a product with the values.

    scores = q @ k.T + bias             [batch * heads, queries, keys]
    out = softmax(scores) @ v                   ...        dq, dk, dv, and the gradient of the bias

transformers runs attention so where no kernel has what a model wants of it: a bias that is learned (T5), sinks
(GPT-OSS), dropout on a CPU. A region grows from the first product as that of an MLP does (`growth.py`), and its tokens
are the queries: keys and values are the same for all shards, and their gradients are sums over the shards.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from memgraph.facts.joint import overwritten_inputs
from memgraph.facts.operators import short_name
from memgraph.facts.tokens.graph import TokenGraph, common_path
from memgraph.facts.tokens.growth import grow_attention
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.states import MixesTokens


def find_scores(
    joint: fx.GraphModule, weights: Collection[str] = (), others: Collection[str] = ()
) -> tuple[tuple[TokenRegion, ...], tuple[RefusedRegion, ...]]:
    """The regions of all products with queries and keys, and what was refused with the operator and the reason.

    weights: the names of the inputs that are known to be parameters.  others: nodes that other regions have.
    """
    graph = TokenGraph(joint, weights)
    overwritten = {node.name for node in overwritten_inputs(joint.graph.nodes)}
    taken = {node for node in graph.nodes if node.name in others}
    regions: list[TokenRegion] = []
    refused: list[RefusedRegion] = []
    for scores in graph.scores():
        if scores in taken:
            continue
        try:
            own, region = grow_attention(graph, scores)
        except MixesTokens as problem:
            reason = f"{short_name(problem.node.target)} {problem.reason}"
            refused.append(RefusedRegion(common_path([scores]), problem.node.name, reason))
            continue
        if region is None:
            continue
        if not taken.isdisjoint(own):
            refused.append(RefusedRegion(region.module, scores.name, "shares operators with another region"))
            continue
        if region.backward and overwritten.intersection(region.inputs):
            reason = "its backward would read an input that the forward overwrites"
            refused.append(RefusedRegion(region.module, scores.name, reason))
            continue
        taken |= own
        regions.append(region)
    return tuple(regions), tuple(refused)
