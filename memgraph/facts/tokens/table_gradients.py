"""Gradients of a table that several readers look up: T5's bias of distances, which every layer adds to its scores.

    d = d_1 + d_2 + ... + d_n              each as large as the scores: [1, heads, queries, keys]
    dtable = put(zeros, places, view(d))   [distances, heads]

Until the last layer's is there, all of them, or their sum, are live. As nothing but sums and views lies between, the
gradient of the table is as well

    dtable = put(zeros, places, view(d_1)) + ... + put(zeros, places, view(d_n))

where each d_i is gone once its entries are put, and a tile of attention puts those of a shard of its queries.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import fx

from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.facts.operators import argument, aten_names, qualified_name
from memgraph.facts.tokens.nodes import is_tensor, makes_zeros, shape_of

_MASKED = "aten::_unsafe_masked_index_put_accumulate"
_PUTS = aten_names("index_put _unsafe_index_put")
# What the verifier lets sums pass through, too (verify/apart.py).
_VIEWS = aten_names("view _unsafe_view reshape permute squeeze unsqueeze")
_CONVERTS = frozenset(("prims::convert_element_type",)) | aten_names("_to_copy clone")


@dataclasses.dataclass(frozen=True)
class TableGradient:
    """The gradient of a table, made of a sum of gradients."""

    put: str
    """The operator that adds entries of the sum up by their places in the table."""
    between: tuple[str, ...]
    """What views or converts the sum for it, in order."""
    total: str
    """The sum."""
    parts: tuple[str, ...]
    """The gradients that are added up, in order; two or more."""

    @property
    def puts(self) -> tuple[str, ...]:
        """The operators that add up the entries of the parts, by name, where each part has its own."""
        return tuple(part_name(self.put, part) for part in self.parts)

    @property
    def made(self) -> frozenset[str]:
        """All operators that one of the parts has of its own then, by name."""
        return frozenset(part_name(name, part) for name in (*self.between, self.put) for part in self.parts)


def part_name(name: str, part: str) -> str:
    """The name of the operator that does for one part what another one, by its name, does for the sum."""
    return f"{name}_of_{part}"


def table_gradients(joint: fx.GraphModule) -> tuple[TableGradient, ...]:
    """The gradients of tables in a joint graph that are made of a sum of larger gradients."""
    place = {node: n for n, node in enumerate(joint.graph.nodes)}
    found = []
    for node in place:
        if not puts_into_zeros(node):
            continue
        between: list[str] = []
        total = argument(node, "values")
        while (read := _passed_on(total)) is not None:
            between.append(total.name)
            total = read
        parts = sorted(_parts(total), key=place.__getitem__)
        if len(parts) > 1 and _has_more_numbers(total, node):
            names = tuple(part.name for part in parts)
            found.append(TableGradient(node.name, tuple(reversed(between)), total.name, names))
    return tuple(found)


def puts_into_zeros(node: fx.Node) -> bool:
    """Whether a node adds entries up into zeros, in a type that sums of many are kept in."""
    name = qualified_name(node.target) if node.op == "call_function" else ""
    if name != _MASKED and (name not in _PUTS or argument(node, "accumulate", False) is not True):
        return False
    dtype = node.meta["val"].dtype
    return makes_zeros(node.args[0]) and dtype.is_floating_point and dtype.itemsize >= torch.float32.itemsize


def _passed_on(node: fx.Node) -> fx.Node | None:
    """The value that a node, which is read once, is a view of, or has in no shorter type, or with zeros in some places.

    None: it does none of that.
    """
    if not is_tensor(node) or len(node.users) != 1 or node.op != "call_function" or not node.args:
        return None
    name = qualified_name(node.target)
    if name == "aten::where" and len(node.args) == 3:  # torch 2.11 leaves out what is padding so
        _, one, other = node.args
        return other if is_tensor(other) and is_tensor(one) and makes_zeros(one) and _looks_like(other, node) else None
    if not is_tensor(node.args[0]) or name not in _VIEWS | _CONVERTS:
        return None
    old, new = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    return node.args[0] if old.is_floating_point and new.is_floating_point and new.itemsize >= old.itemsize else None


def _parts(total: fx.Node) -> list[fx.Node]:
    """What a value is the sum of; itself alone where it is none, or where others read the sum as well."""
    parts: list[fx.Node] = []
    pending = [total]
    while pending:
        node = pending.pop()
        if _adds(node):
            pending += node.args
        else:
            parts.append(node)
    return parts


def _adds(node: fx.Node) -> bool:
    """Whether a node adds two values of its own shape and type, for one reader."""
    if not is_tensor(node) or qualified_name(node.target) != "aten::add" or node.kwargs or len(node.users) != 1:
        return False
    return len(set(node.args)) == 2 and all(is_tensor(read) and _looks_like(read, node) for read in node.args)


def _looks_like(one: fx.Node, other: fx.Node) -> bool:
    same = len(shape_of(one)) == len(shape_of(other)) and all(map(compat.same_size, shape_of(one), shape_of(other)))
    return same and one.meta["val"].dtype == other.meta["val"].dtype


def _has_more_numbers(one: fx.Node, other: fx.Node) -> bool:
    """Whether a value has more numbers than another; where sizes are symbols, at the sizes in force."""
    try:
        return compat.size_hint(math.prod(shape_of(one))) > compat.size_hint(math.prod(shape_of(other)))
    except GraphError:  # data decide it
        return False
