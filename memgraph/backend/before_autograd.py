"""Dynamo's graph before autograd sees it: masks that need not be made, and two rewrites that a tiled loss needs."""

from __future__ import annotations

from memgraph import passes
from memgraph.backend.options import TileOptions
from memgraph.backend.rewriting import check_captured, rewrite
from memgraph.facts.masks.causal import Masks, RefusedMask, causal_masks
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten
from memgraph.planner.decisions import Refusal
from memgraph.verify.masks import MaskError


def before_autograd(captured: Captured, tile: TileOptions | None) -> Rewritten[Captured]:
    """The graph with what the options for tiles ask of it, notes for the report, and what was refused."""
    if tile is None:
        return Rewritten(captured, modified=False)
    masks = causal_masks(captured.module) if tile.attention else Masks((), ())
    causal, refused = masks.causal, list(masks.refused)
    while True:
        plan = EarlyPlan(causal, drop_logits=tile.logits == "drop", slice_before_head=tile.loss is not False)
        try:
            found = rewrite(captured, passes.BEFORE_AUTOGRAD, plan, check_captured)
        except MaskError as problem:
            refused.append(RefusedMask(problem.mask, problem.calls, f"it cannot be tried: {problem}"))
            causal = tuple(name for name in causal if name not in problem.calls)
            continue
        refusals = (*found.refusals, *(_refusal(mask, tile) for mask in refused))
        return Rewritten(found.graphs, found.modified, found.notes, refusals)


def _refusal(refused: RefusedMask, tile: TileOptions) -> Refusal:
    calls = f"{len(refused.calls)} calls" if len(refused.calls) > 1 else "a call"
    what = f"tile: {{'attention': {tile.attention!r}}}"
    return Refusal(what, f"{refused.mask}, the mask of {calls} of attention, is not dropped: {refused.reason}")
