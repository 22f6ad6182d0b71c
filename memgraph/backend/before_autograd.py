"""Dynamo's graph before autograd sees it: masks that need not be made, and two rewrites that a tiled loss needs.

A mask that is the causal one is dropped where tiles are asked for, and where attention has another kernel than torch's
choice anyway: in cuDNN's place memory-efficient attention takes a mask, at a fraction of its speed
(docs/decisions/0018).
"""

from __future__ import annotations

import dataclasses

from memgraph import passes
from memgraph.backend.options import TileOptions
from memgraph.backend.rewriting import check_captured, rewrite
from memgraph.facts.masks.causal import Masks, RefusedMask, causal_masks
from memgraph.facts.masks.cudnn import taken_from_cudnn
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten
from memgraph.planner.decisions import Refusal
from memgraph.verify.masks import MaskError

CUDNN = "attention in cuDNN's place"
"""What is refused where nobody asked for tiles: the kernel that takes a mask is slower than cuDNN's."""


def before_autograd(captured: Captured, tile: TileOptions | None) -> Rewritten[Captured]:
    """The graph with what the options for tiles ask of it, notes for the report, and what was refused."""
    asked = tile is not None and bool(tile.attention)
    left_alone = tile is not None and not asked
    masks = Masks((), ()) if left_alone else _masks(captured, asked)
    what = f"tile: {{'attention': {tile.attention!r}}}" if tile is not None else CUDNN
    if tile is None and not (masks.causal or masks.refused):
        return Rewritten(captured, modified=False)
    causal, refused = masks.causal, list(masks.refused)
    dropped, sliced = (False, False) if tile is None else (tile.logits == "drop", tile.loss is not False)
    while True:
        plan = EarlyPlan(causal, drop_logits=dropped, slice_before_head=sliced)
        try:
            found = rewrite(captured, passes.BEFORE_AUTOGRAD, plan, check_captured)
        except MaskError as problem:
            refused.append(RefusedMask(problem.mask, problem.calls, f"it cannot be tried: {problem}"))
            causal = tuple(name for name in causal if name not in problem.calls)
            continue
        refusals = (*found.refusals, *(_refusal(mask, what) for mask in refused))
        return Rewritten(found.graphs, found.modified, found.notes, refusals)


def _masks(captured: Captured, asked: bool) -> Masks:
    """The masks that are looked at: all of them where tiles are asked for, else those of calls that lose cuDNN."""
    if asked:
        return causal_masks(captured.module)
    taken = taken_from_cudnn(captured.module)
    if not taken:
        return Masks((), ())
    found = causal_masks(captured.module)
    refused = (dataclasses.replace(mask, calls=tuple(taken.intersection(mask.calls))) for mask in found.refused)
    return Masks(tuple(call for call in found.causal if call in taken), tuple(mask for mask in refused if mask.calls))


def _refusal(refused: RefusedMask, what: str) -> Refusal:
    calls = f"{len(refused.calls)} calls" if len(refused.calls) > 1 else "a call"
    return Refusal(what, f"{refused.mask}, the mask of {calls} of attention, is not dropped: {refused.reason}")
