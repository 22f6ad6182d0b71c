"""Masks of random numbers, as dropout makes them.

    random = inductor_random(...);  mask = random > p;  kept = mask * x;  ...;  dx = mask * dy

Inductor writes random numbers to memory where two kernels read them, and inlines the comparison into both. The mask
takes a quarter of the bytes: where a plan computes it again for several readers, it is written instead
(passes/settle.py), and the numbers stay within one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from memgraph.base import compat


def drawn_masks(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The values that are made of random numbers alone and take fewer bytes than they do."""
    return {node for node in nodes if node.op == "call_function" and _is_drawn_mask(node)}


def _is_drawn_mask(node: fx.Node) -> bool:
    reads = node.all_input_nodes
    if len(reads) != 1 or not compat.inductor_pure_random(reads[0].target):
        return False
    mask, numbers = node.meta.get("val"), reads[0].meta.get("val")
    both = isinstance(mask, torch.Tensor) and isinstance(numbers, torch.Tensor)
    return both and mask.shape == numbers.shape and mask.itemsize < numbers.itemsize
