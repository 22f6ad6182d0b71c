"""Values that an operator reads in a larger size.

    mask = where(row >= column, 0, -inf)      [1, 1, tokens, tokens]
    every = expand(mask, [1, heads, ...])     a view: each head reads the same entries
    attention(query, key, value, every)

Inductor inlines a mask that is not in memory into the view, and writes the view: all entries once for every head. A
mask with several readers is written first. One that a plan computes again for a single reader is not, so the plan has
it written (passes/settle.py).

    labels = pad(ids)                         [rows], of which more is made
    picked = labels[:, None] == arange        [rows, words]

Here Inductor computes the labels within the kernel of all words, and may take that to pieces for its many operations
(docs/decisions/0002). So what is said of a row is written as well, a kernel of no account.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import family
from memgraph.facts.views import is_view

_WORDS = 1 << 14
"""So many entries of a row that what is said of the row is written, and not computed for each of them."""


def read_expanded(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The pointwise values that an operator which fuses with nothing reads through a view with more entries, and those
    with a number for each of many rows that one which fuses reads for every entry of long rows."""
    return {node for node in nodes if node.op == "call_function" and _is_read_expanded(node)}


def _is_read_expanded(node: fx.Node) -> bool:
    if family(node.target) != "pointwise":
        return False
    mine = entries_of(node)
    return any(
        entries > mine > 0 if alone else mine > 1 and entries >= mine * _WORDS for entries, alone in _read_sizes(node)
    )


def _read_sizes(node: fx.Node) -> Iterator[tuple[int, bool]]:
    """How many entries operators read of a value, through its views, and whether they fuse with nothing.  Of those that
    fuse only those are named that read it for each entry of a row."""
    for user in node.users:
        if is_view(user) and user.all_input_nodes[0] is node:
            yield from _read_sizes(user)
        elif user.op == "call_function":
            kind = family(user.target)
            if kind == "extern":
                yield entries_of(node), True
            elif kind == "pointwise" and _is_one_a_row(node):
                yield entries_of(user), False


def _is_one_a_row(node: fx.Node) -> bool:
    """Whether rows have a single entry, or one that stands for all of them."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return False
    return compat.size_hint(value.shape[-1]) == 1 or compat.size_hint(value.stride(-1)) == 0


def entries_of(node: fx.Node) -> int:
    """How many entries a tensor has; 0 for what is none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(compat.size_hint(size) for size in value.shape)
