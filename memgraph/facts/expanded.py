"""Values that an operator reads in a larger size.

    mask = where(row >= column, 0, -inf)      [1, 1, tokens, tokens]
    every = expand(mask, [1, heads, ...])     a view: each head reads the same entries
    attention(query, key, value, every)

Inductor inlines a mask that is not in memory into the view, and writes the view: all entries once for every head. A
mask with several readers is written first. One that a plan computes again for a single reader is not, so the plan has
it written (passes/settle.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import family
from memgraph.facts.views import is_view


def read_expanded(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The pointwise values that an operator which fuses with nothing reads through a view with more entries."""
    return {node for node in nodes if node.op == "call_function" and _is_read_expanded(node)}


def _is_read_expanded(node: fx.Node) -> bool:
    mine = _entries(node)
    return family(node.target) == "pointwise" and any(entries > mine > 0 for entries in _read_sizes(node))


def _read_sizes(node: fx.Node) -> Iterator[int]:
    """How many entries each operator that fuses with nothing reads of a value, through its views."""
    for user in node.users:
        if is_view(user) and user.all_input_nodes[0] is node:
            yield from _read_sizes(user)
        elif user.op == "call_function" and family(user.target) == "extern":
            yield _entries(node)


def _entries(node: fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(compat.size_hint(size) for size in value.shape)
