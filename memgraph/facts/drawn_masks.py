"""Masks of random numbers, as dropout makes them.

    random = inductor_random(...);  mask = random > p;  kept = mask * x;  ...;  dx = mask * dy

In half precision they are converted before they are compared.
Inductor writes random numbers to memory where two kernels read them, and inlines the comparison into both. The mask
takes a quarter of the bytes: where a plan computes it again for several readers, it is written instead
(passes/settle.py), and the numbers stay within one kernel.

    scores = pad(mask * dy)                           a column more than was drawn, as attention with sinks has it

The same goes for one reader, where its kernel runs over more entries than were drawn: it cannot draw them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.expanded import entries_of
from memgraph.facts.operators import family


def drawn_masks(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The values that are made of random numbers alone and take fewer bytes than what they are made of."""
    numbers: set[fx.Node] = set()  # random ones, and what is made of them alone
    found = set()
    for node in nodes:
        if node.op != "call_function":
            continue
        if compat.inductor_pure_random(node.target):
            numbers.add(node)
        elif len(reads := node.all_input_nodes) == 1 and reads[0] in numbers:
            numbers.add(node)
            if _is_smaller(node, reads[0]):
                found.add(node)
    return found


def read_in_larger_kernels(masks: Iterable[fx.Node]) -> set[fx.Node]:
    """Those of some masks that are read for more entries, by itself or in what is made of it for a single reader."""
    return {mask for mask in masks if any(_is_enlarged(user, entries_of(mask)) for user in mask.users)}


def _is_enlarged(node: fx.Node, entries: int) -> bool:
    while node.op == "call_function" and family(node.target) in ("pointwise", "view"):
        if (mine := entries_of(node)) != entries:
            return mine > entries
        if len(node.users) != 1:
            return False
        (node,) = node.users
    return False


def _is_smaller(node: fx.Node, read: fx.Node) -> bool:
    """Whether a value has the shape of another one and takes fewer bytes."""
    mine, other = node.meta.get("val"), read.meta.get("val")
    both = isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and mine.shape == other.shape and mine.itemsize < other.itemsize
