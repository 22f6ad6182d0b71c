"""Token flow: which stretches of a joint graph, with their backward, can run one shard of the tokens at a time.

    x ── gate ─┐                       A region grows from an operator that makes rows wider (gate): whatever makes or
    x ── up ── silu * ── down ── y     reads a wide value belongs to it, forward and backward, until all that crosses
        (wide)        (wide)           its border is thin. Sums over tokens (the weights' gradients) end it as well.

No module's name or class decides anything: a path only names a region for the rules and the report.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from memgraph.facts.joint import overwritten_inputs
from memgraph.facts.operators import short_name
from memgraph.facts.tokens.growth import Growth
from memgraph.facts.tokens.region import Refused, Region, TokenGraph, common_path
from memgraph.facts.tokens.states import Mixed

__all__ = ["Refused", "Region", "find_regions"]


def find_regions(
    joint: fx.GraphModule, weights: Collection[str] = ()
) -> tuple[tuple[Region, ...], tuple[Refused, ...]]:
    """All regions of a joint graph, none within another, and what was refused with the operator and the reason.

    weights: inputs that are parameters, by name, where that is known.
    """
    graph = TokenGraph(joint, weights)
    overwritten = {node.name for node in overwritten_inputs(joint.graph.nodes)}
    taken: set[fx.Node] = set()
    regions, refused = [], []
    for seed, rows in graph.amplifiers():
        if seed in taken:
            continue
        growth = Growth(graph, seed, rows)
        try:
            region = growth.run()
        except Mixed as problem:
            taken.add(seed)
            if short_name(seed.target) != "clone":  # what repeats rows need not be experts: grouped keys do it too
                reason = f"{short_name(problem.node.target)} {problem.reason}"
                refused.append(Refused(common_path([seed]), problem.node.name, reason))
            continue
        taken |= growth.members
        if region is None:
            continue
        if region.backward and overwritten.intersection(region.inputs):
            reason = "its backward would read an input that the forward overwrites"
            refused.append(Refused(region.module, region.forward[0], reason))
        else:
            regions.append(region)
    return tuple(regions), tuple(refused)
