"""Dynamo's graph before autograd sees it: masks that need not be made, and two rewrites that a tiled loss needs.

A mask that is the causal one is dropped where tiles are asked for, and where torch gives attention to cuDNN: with the
mask its kernels look at every pair of a query and a key, which takes three times as long (docs/decisions/0018).
"""

from __future__ import annotations

import torch

from memgraph import passes
from memgraph.backend.options import TileOptions
from memgraph.backend.rewriting import check_captured, rewrite
from memgraph.facts.masks.causal import ATTENTION, Masks, RefusedMask, arguments, causal_masks
from memgraph.facts.masks.cudnn import given_to_cudnn
from memgraph.facts.masks.kernels import taken_apart
from memgraph.passes.graphs import Captured, EarlyPlan, Rewritten
from memgraph.planner.decisions import Refusal
from memgraph.verify.masks import MaskError

TAKEN_APART = "torch has no kernel for such attention here, and products and a softmax would each make their own"


def before_autograd(
    captured: Captured, tile: TileOptions | None, device: torch.device | None = None
) -> Rewritten[Captured]:
    """The graph with what the options for tiles ask of it, notes for the report, and what was refused.

    device: for which the graph will be traced; by default where its tensors are.
    """
    masks = _masks(captured, tile, device)
    if tile is None and not masks.causal:
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
        refusals = (*found.refusals, *(_refusal(mask, tile) for mask in refused))
        return Rewritten(found.graphs, found.modified, found.notes, refusals)


def _masks(captured: Captured, tile: TileOptions | None, device: torch.device | None) -> Masks:
    """The masks that are looked at: all of them where tiles are asked for, else those of calls that cuDNN takes."""
    if tile is not None:
        return _of_kernels(captured, device) if tile.attention else Masks((), ())
    calls = given_to_cudnn(captured.module)
    causal = causal_masks(captured.module).causal if calls else ()
    return Masks(tuple(call for call in causal if call in calls), ())


def _of_kernels(captured: Captured, device: torch.device | None) -> Masks:
    """All masks; those of calls that torch takes apart are refused: each would make a mask of its own."""
    masks = causal_masks(captured.module)
    apart = taken_apart(captured.module, device).intersection(masks.causal)
    if not apart:
        return masks
    calls = captured.module.graph.find_nodes(op="call_function", target=ATTENTION)
    by_mask: dict[str, list[str]] = {}
    for call in calls:
        if call.name in apart:
            by_mask.setdefault(arguments(call)["attn_mask"].name, []).append(call.name)
    kept = [RefusedMask(mask, tuple(names), TAKEN_APART) for mask, names in by_mask.items()]
    return Masks(tuple(name for name in masks.causal if name not in apart), (*masks.refused, *kept))


def _refusal(refused: RefusedMask, tile: TileOptions | None) -> Refusal:
    calls = f"{len(refused.calls)} calls" if len(refused.calls) > 1 else "a call"
    what = "attention without its mask" if tile is None else f"tile: {{'attention': {tile.attention!r}}}"
    return Refusal(what, f"{refused.mask}, the mask of {calls} of attention, is not dropped: {refused.reason}")
