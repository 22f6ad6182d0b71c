"""Token flow: which stretches of a joint graph, with their backward, can run one shard of the tokens at a time.

    x ── gate ─┐                       A region grows from an operator that makes rows wider (gate). Every operator
    x ── up ── silu * ── down ── y     that makes or reads a wide value belongs to it, forward and backward, until
        (wide)        (wide)           only thin values cross its border. Sums over tokens (gradients of weights) end
                                       it as well.

No module's name or class decides anything: a path only names a region for the rules and the report.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from memgraph.facts.joint import overwritten_inputs
from memgraph.facts.operators import qualified_name, short_name
from memgraph.facts.tokens.graph import TokenGraph, common_path
from memgraph.facts.tokens.growth import grow
from memgraph.facts.tokens.region import RefusedRegion, TokenRegion
from memgraph.facts.tokens.states import MixesTokens


def find_regions(
    joint: fx.GraphModule, weights: Collection[str] = ()
) -> tuple[tuple[TokenRegion, ...], tuple[RefusedRegion, ...]]:
    """All regions of a joint graph, none within another, and what was refused with the operator and the reason.

    weights: the names of the inputs that are known to be parameters.
    """
    graph = TokenGraph(joint, weights)
    overwritten = {node.name for node in overwritten_inputs(joint.graph.nodes)}
    taken: set[fx.Node] = set()
    regions: list[TokenRegion] = []
    refused: list[RefusedRegion] = []
    for seed, rows in graph.amplifiers():
        if seed in taken:
            continue
        try:
            members, region = grow(graph, seed, rows)
        except MixesTokens as problem:
            taken.add(seed)
            if qualified_name(seed.target) != "aten::clone":  # grouped keys repeat rows as well, without experts
                reason = f"{short_name(problem.node.target)} {problem.reason}"
                refused.append(RefusedRegion(common_path([seed]), problem.node.name, reason))
            continue
        taken |= members
        if region is None:
            continue
        if region.backward and overwritten.intersection(region.inputs):
            reason = "its backward would read an input that the forward overwrites"
            refused.append(RefusedRegion(region.module, region.forward[0], reason))
        else:
            regions.append(region)
    return tuple(regions), tuple(refused)
