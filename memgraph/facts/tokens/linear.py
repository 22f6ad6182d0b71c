"""Whether an operator is linear in some of its inputs: then a gradient for a tangent of 1 may be scaled by the tangent.

A backward is linear in its tangent as autograd derives it, but a function of the user's own may clip a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx

from memgraph.facts.operators import described, family, qualified_name
from memgraph.facts.tokens.kinds import GROUPED_FALLBACK
from memgraph.facts.tokens.nodes import is_tensor, makes_zeros
from memgraph.facts.views import is_view, view_base

aten, prims = torch.ops.aten, torch.ops.prims
# Whether a node is linear in those of its inputs that are among the given nodes, taken together.
Test = Callable[[fx.Node, Collection[fx.Node]], bool]


def linear(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """Whether a node is linear in those of its inputs that are in `dependent`, taken together."""
    if is_tensor(node) and not node.meta["val"].dtype.is_floating_point:
        return False  # rounded to whole numbers, or compared
    if family(node.target) == "getitem" or _views(node):
        return True
    test = LINEAR.get(qualified_name(node.target))
    return test is not None and test(node, dependent)


def _moving(node: fx.Node, dependent: Collection[fx.Node]) -> list[fx.Node]:
    """The inputs that are in `dependent`."""
    return [read for read in node.all_input_nodes if read in dependent]


def _in_first(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """Linear in the first input alone."""
    first = [read for read in node.all_input_nodes if is_tensor(read) or read in dependent][:1]
    return first == _moving(node, dependent)


def _padded(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _in_first(node, dependent) and (len(node.args) < 3 or node.args[2] == 0)


def _in_argument(place: int, node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _moving(node, dependent) == [node.args[place]]


def _sum(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _all_move(node.args[:2], dependent)


def _joined(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _all_move(node.args[0], dependent)


def _copied(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _all_move(node.args[1:2], dependent)


def _chosen(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return node.args[0] not in dependent and _all_move(node.args[1:3], dependent)


def _product(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    moving = _moving(node, dependent)
    return len(moving) == 1 and sum(item in moving for item in node.args[:2]) == 1


def _quotient(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    return _in_argument(0, node, dependent) and node.kwargs.get("rounding_mode") is None


def _product_and_sum(one: int, other: int, added: int, node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """one, other, added: the places of the two factors and of what is added, among the arguments."""
    factors = [node.args[one] in dependent, node.args[other] in dependent]
    return factors[0] != factors[1] and _all_move((node.args[added],), dependent)


def _written(place: int, node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """place: the argument that is written into the first one."""
    both = (node.args[0], node.args[place])
    return _moving(node, dependent) == [item for item in both if item in dependent] and _all_move(both, dependent)


def _all_move(items: Iterable[Any], dependent: Collection[fx.Node]) -> bool:
    """Whether all items are in `dependent` or are zero."""
    return all(item in dependent or _zero(item) for item in items)


def _zero(item: object) -> bool:
    return makes_zeros(view_base(item, _views)) if isinstance(item, fx.Node) else item == 0


def _views(node: fx.Node) -> bool:
    """Whether a node only views its input: an operator that nobody described may return anything in its storage."""
    return is_view(node) and described(node.target)


_IN_FIRST = (
    aten.neg, aten.clone, aten._to_copy, aten.sum, aten.mean, aten.cumsum, aten.flip, aten.index, aten.gather,
    aten.embedding, aten.slice_backward, aten.select_backward, aten.repeat, prims.convert_element_type, prims.rev,
)  # fmt: skip
_TESTS: dict[Any, Test] = {
    **dict.fromkeys(_IN_FIRST, _in_first),
    aten.constant_pad_nd: _padded,
    **dict.fromkeys((aten.add, aten.sub), _sum),
    aten.cat: _joined,
    aten.copy: _copied,
    aten.where: _chosen,
    **dict.fromkeys((aten.mul, aten.mm, aten.bmm, aten._grouped_mm, GROUPED_FALLBACK), _product),
    aten.div: _quotient,
    "prims::fma": functools.partial(_product_and_sum, 0, 1, 2),
    aten.addmm: functools.partial(_product_and_sum, 1, 2, 0),
    aten.glu_backward: functools.partial(_in_argument, 0),
    f"{GROUPED_FALLBACK}_backward": functools.partial(_in_argument, 3),
    **dict.fromkeys((aten.slice_scatter, aten.select_scatter, aten.diagonal_scatter), functools.partial(_written, 1)),
    **dict.fromkeys((aten.index_put, aten._unsafe_index_put), functools.partial(_written, 2)),
    **dict.fromkeys((aten.scatter, aten.scatter_add), functools.partial(_written, 3)),
}
LINEAR = {qualified_name(target): test for target, test in _TESTS.items()}
