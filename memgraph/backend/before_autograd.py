"""Dynamo's graph before autograd sees it: two rewrites that a tiled loss needs."""

from __future__ import annotations

from memgraph import passes
from memgraph.backend.options import TileOptions
from memgraph.backend.rewriting import check_captured, rewrite
from memgraph.passes.graphs import Captured, LossPlan, Rewritten


def before_autograd(captured: Captured, tile: TileOptions | None) -> Rewritten[Captured]:
    """The graph with what the options for tiles ask of it, notes for the report, and what was refused."""
    plan = LossPlan()
    if tile is not None:
        plan = LossPlan(drop_logits=tile.logits == "drop", slice_before_head=tile.loss is not False)
    return rewrite(captured, passes.BEFORE_AUTOGRAD, plan, check_captured)
