"""Which inputs an operator reads at other entries than the one that it writes: it cannot write its output over those.

    halves put together      cat(a, b)[i, j] = b[i, j - n]                  it does
    padded, and cut back     pad(a)[i, j] = a[i, j] at the entries of a     it does not: they begin at the same entry
    heads behind tokens      copy(a.transpose(0, 1))[i, j] = a[j, i]        it does: the copy lies otherwise

What is padded has another size, so nothing is written over it. But what is cut back from it may be written over `a`: in
attention with sinks, whose scores have one column more than there are keys, that is the gradient of all scores.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.operators import argument, aten_names, family, qualified_name

# They read other entries of all their inputs, or may: of an index nothing is known.
MOVES = aten_names(
    "cat index gather index_select embedding _unsafe_index _unsafe_masked_index flip roll repeat select select_backward"
) | {"prims::rev"}
# They do so with their second input, which is put into the first.
PUTS = aten_names("select_scatter diagonal_scatter")
SLICES = aten_names("slice slice_backward slice_scatter")
SLICE_SCATTER, PAD = "aten::slice_scatter", "aten::constant_pad_nd"


def read_elsewhere(node: fx.Node) -> tuple[int, ...]:
    """By place among all inputs of a node, those of which it reads other entries than the one that it writes."""
    name, inputs = qualified_name(node.target), node.all_input_nodes
    shifts = name in SLICES and not (argument(node, "start") in (0, None) and argument(node, "step") == 1)
    if name in PUTS or (shifts and name == SLICE_SCATTER):
        return tuple(n for n, read in enumerate(inputs) if read is node.args[1])
    if shifts or name in MOVES or _is_later_part(node) or (name == PAD and any(argument(node, "pad")[::2])):
        return tuple(range(len(inputs)))
    if family(node.target) == "pointwise":
        return tuple(n for n, read in enumerate(inputs) if _lies_otherwise(read, node))
    return ()


def _lies_otherwise(read: fx.Node, node: fx.Node) -> bool:
    """Whether the entries of an input lie in another order in memory than those of a node's value: transposed, say.

    Gaps between them do not count: what is padded and cut back has them as long as it is not written.
    """
    there, here = read.meta.get("val"), node.meta.get("val")
    if not (isinstance(there, torch.Tensor) and isinstance(here, torch.Tensor)):
        return False
    if there.layout is not torch.strided or here.layout is not torch.strided or there.dim() != here.dim():
        return False
    sizes, others = (tuple(map(compat.size_hint, val.shape)) for val in (here, there))
    return sizes == others and _order(here, sizes) != _order(there, sizes)


def _order(val: torch.Tensor, sizes: tuple[int, ...]) -> list[int]:
    """The dimensions of more than one entry, from the one whose entries lie farthest apart to the nearest."""
    strides = [compat.size_hint(stride) for stride in val.stride()]
    return sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -strides[dim])


def read_beside(node: fx.Node) -> tuple[int, ...]:
    """By place among all inputs of a node, those of which another operator reads other entries.

    A loss picks each token's logit and, for the backward, keeps the softmax of all. Where Inductor makes one loop over
    the rows of both, the softmax stands beside the logits.
    """
    return tuple(
        n
        for n, read in enumerate(node.all_input_nodes)
        if any(user is not node and user.op == "call_function" and _reads(user, read) for user in read.users)
    )


def _reads(user: fx.Node, read: fx.Node) -> bool:
    """Whether an operator reads other entries of an input than the one that it writes."""
    return any(user.all_input_nodes[place] is read for place in read_elsewhere(user))


def _is_later_part(node: fx.Node) -> bool:
    """Whether a node takes another than the first of several views, such as those of a split."""
    return node.target is operator.getitem and node.args[1] != 0 and family(node.args[0].target) == "view"
