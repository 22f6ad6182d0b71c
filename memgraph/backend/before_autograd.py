"""What tiles want of Dynamo's graph, before autograd sees it."""

from __future__ import annotations

from typing import Any

from torch import fx

from memgraph.backend.options import TileOptions
from memgraph.passes.drop_logits import drop_logits
from memgraph.passes.slice_before_head import slice_before_head
from memgraph.planner.decisions import Refusal


def before_autograd(
    gm: fx.GraphModule, inputs: Any, tile: TileOptions | None
) -> tuple[fx.GraphModule, tuple[str, ...], tuple[Refusal, ...]]:
    """What tiles want of Dynamo's graph: (the graph, notes for the report, refusals)."""
    notes, refusals = [], []
    if tile is not None and tile.logits == "drop":
        gm, note, refused = drop_logits(gm, inputs)
        notes += [note] if note else []
        refusals += [refused] if refused else []
    if tile is not None and tile.loss is not False:
        gm = slice_before_head(gm)
    return gm, tuple(notes), tuple(refusals)
