"""Token flow: which stretches of a joint graph, with their backward, can run one shard of the tokens at a time.

    x ── gate ─┐                       A region grows from an operator that makes rows wider (gate): whatever makes or
    x ── up ── silu * ── down ── y     reads a wide value belongs to it, forward and backward, until all that crosses
        (wide)        (wide)           its border is thin. Sums over tokens (the weights' gradients) end it as well.

No module's name or class decides anything: a path only names a region for the rules and the report.
"""

from __future__ import annotations

from torch import fx

from memgraph.facts.operators import short_name
from memgraph.facts.token_graph import Refused, Region, TokenGraph, common_path
from memgraph.facts.token_growth import Growth
from memgraph.facts.token_states import Mixed

__all__ = ["Refused", "Region", "find_regions"]


def find_regions(joint: fx.GraphModule) -> tuple[tuple[Region, ...], tuple[Refused, ...]]:
    """All regions of a joint graph, none within another, and what was refused with the operator and the reason."""
    graph = TokenGraph(joint)
    taken: set[fx.Node] = set()
    regions, refused = [], []
    for seed, rows in graph.amplifiers():
        if seed in taken:
            continue
        growth = Growth(graph, seed, rows)
        try:
            region = growth.run()
        except Mixed as problem:
            taken |= growth.reached
            refused.append(
                Refused(common_path([seed]), problem.node.name, f"{short_name(problem.node.target)} {problem.reason}")
            )
            continue
        taken |= growth.members
        if region is not None:
            regions.append(region)
    return tuple(regions), tuple(refused)
