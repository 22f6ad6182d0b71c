"""Parts of a gradient: what was joined in the forward gets a gradient each, cut out of that of the whole.

    cat([y, skip])        d [1, 64, 128, 128]  ──slice──> of y: a convolution's backward reads it at once
                                               ──slice──> of skip: it waits for the backward of the way down

Inductor writes the whole for the operator that reads the first part, and it stands until the last part has been read.
A plan may have each part written by itself instead (passes/settle.py): the whole is never written, and what waits is
its own part alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import family, twice_is_wrong
from memgraph.facts.views import is_view

SLICE = torch.ops.aten.slice.Tensor


def parts_of_gradients(backward: Iterable[fx.Node]) -> set[fx.Node]:
    """The slices that are all that is read of a pointwise value, if an operator that fuses with nothing reads one.

    Together they hold no more entries than the whole. None is returned, or read by strides.
    """
    found: set[fx.Node] = set()
    for node in backward:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor) or node.op != "call_function" or family(node.target) != "pointwise":
            continue
        slices = list(whole_of(node).users)
        if len(slices) < 2 or any(part.target is not SLICE for part in slices) or twice_is_wrong(node):
            continue
        shown = entries(whole_of(node))
        if shown != entries(node) or sum(map(entries, slices)) > shown:
            continue
        readers = [reader for part in slices for reader in _readers(part)]
        if all(map(_reads_any_memory, readers)) and any(family(reader.target) == "extern" for reader in readers):
            found.update(slices)
    return found


def whole_of(node: fx.Node) -> fx.Node:
    """The view of a value that all its readers read; the value itself if there is none."""
    while len(node.users) == 1 and is_view(user := next(iter(node.users))) and user.target is not SLICE:
        node = user
    return node


def entries(node: fx.Node) -> int:
    return math.prod(map(compat.size_hint, node.meta["val"].shape))


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    """What reads a node, maybe through views; a view by strides counts as a reader."""
    for user in node.users:
        if is_view(user) and user.target is not torch.ops.aten.as_strided.default:
            yield from _readers(user)
        else:
            yield user


def _reads_any_memory(reader: fx.Node) -> bool:
    return reader.op == "call_function" and not is_view(reader)
