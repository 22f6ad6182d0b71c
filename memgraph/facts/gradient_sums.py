"""Sums of gradients: each reader of a value in the forward, such as a weight of an unrolled cell, adds a part to it.

Autograd adds the parts one by one, as they come. Inductor may make one kernel of all additions, which runs when the
last part is there; until then all parts are live. A plan may write the sums to memory instead (passes/settle.py).

Of a product and the sum that adds it, Inductor makes one operator (`addmm`), which runs where the sum stands. Where
what it is added to is there only later, all that the product multiplies is live until then: weights that the embedding
and the head share keep the gradient of the logits until the embedding's own gradient is there, at the end of the
backward. A plan may have the product computed in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

# A gradient counts as added up from this many additions on: with two, at most three parts are live either way.
LEAST_SUMS = 3


def gradient_sums(backward: Iterable[fx.Node]) -> set[fx.Node]:
    """The additions of all chains of LEAST_SUMS or more by which gradients add up."""
    backward = set(backward)
    chains: list[list[fx.Node]] = []
    sums = {node for node in backward if node.target is torch.ops.aten.add.Tensor and _adds_gradients(node, backward)}
    for node in sums:
        if any(user in sums for user in node.users) and len(node.users) == 1:
            continue  # not the last of its chain
        chain = [node]
        while previous := [arg for arg in chain[-1].all_input_nodes if arg in sums and len(arg.users) == 1][:1]:
            chain += previous
        chains.append(chain)
    return {node for chain in chains if len(chain) >= LEAST_SUMS for node in chain}


def early_products(backward: Sequence[fx.Node]) -> set[fx.Node]:
    """Products that nothing but a sum reads, which adds them to what is computed after them.

    backward: in order.
    """
    place = {node: n for n, node in enumerate(backward)}
    found = set()
    for node in backward:
        if node.target is not torch.ops.aten.mm.default or len(node.users) != 1:
            continue
        (reader,) = node.users
        adds = reader in place and reader.target is torch.ops.aten.add.Tensor and not reader.kwargs
        if adds and any(place.get(other, -1) > place[node] for other in reader.all_input_nodes):
            found.add(node)
    return found


def _adds_gradients(node: fx.Node, backward: set[fx.Node]) -> bool:
    values = [arg.meta.get("val") if isinstance(arg, fx.Node) else None for arg in (node, *node.args[:2])]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
    same = len(shapes) == len(values) and all(shape == shapes[0] for shape in shapes)
    return same and not node.kwargs and backward.issuperset(node.args[:2])
