"""A joint graph as the search for token regions sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import fx

from memgraph.facts.operators import qualified_name
from memgraph.facts.regions import module_path
from memgraph.facts.tokens.kinds import PRODUCTS, SORTS
from memgraph.facts.tokens.nodes import is_tensor, shape_of
from memgraph.facts.values import is_backward_input
from memgraph.facts.views import is_view, view_base

# An operator that makes a token's row this many times longer starts a region; every longer row belongs to it. Numbers
# count, not bytes: the mask of a ReLU is part of its MLP.
WIDE = 1.5
# How many operators a walk up from an integer value looks at in search of a sort.
LOOKED_AT = 12


class TokenGraph:
    """What all regions of one joint graph share."""

    def __init__(self, joint: fx.GraphModule, weights: Collection[str] = ()) -> None:
        """weights: the names of the inputs that are known to be parameters."""
        self.nodes = [node for node in joint.graph.nodes if node.op != "output"]
        self.place = {node: n for n, node in enumerate(joint.graph.nodes)}
        """By node, its position in execution order."""
        self.backward: set[fx.Node] = set()
        """The nodes that depend on a tangent."""
        self.weights: set[fx.Node] = set()
        """The parameters, and the nodes that are computed from parameters alone."""
        self.dead: set[fx.Node] = set()
        """The operators that nothing reads."""
        for node in self.nodes:
            self._sort_out(node, weights)
        for node in reversed(self.nodes):
            if node.op == "call_function" and self.dead.issuperset(node.users) and not node.is_impure():
                self.dead.add(node)

    def _sort_out(self, node: fx.Node, weights: Collection[str]) -> None:
        reads = node.all_input_nodes
        if node.op == "placeholder":
            if is_backward_input(node):
                self.backward.add(node)
            elif node.name in weights:
                self.weights.add(node)
        elif self.backward.intersection(reads) or node.meta.get("partitioner_tag") == "must_be_in_backward":
            self.backward.add(node)
        elif reads and self.weights.issuperset(reads):
            self.weights.add(node)

    def in_order(self, nodes: Collection[fx.Node]) -> list[fx.Node]:
        """The nodes in execution order."""
        return sorted(nodes, key=self.place.__getitem__)

    def amplifiers(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Forward operators that make a token's row wider, each with the matrix whose rows are the tokens."""
        for node in self.nodes:
            if node in self.backward or not (is_tensor(node) and node.meta["val"].dtype.is_floating_point):
                continue
            rows = _rows(node)
            if rows is None or rows in self.weights:
                continue
            shape = shape_of(rows)
            if not all(isinstance(size, int) for size in (*shape, *shape_of(node))) or len(shape) < 2 or shape[0] < 2:
                continue
            if math.prod(shape_of(node)) >= WIDE * math.prod(shape):
                yield node, rows

    def scores(self) -> Iterator[fx.Node]:
        """Products of the forward that make a number for each query and key: wider than both, and of no weights."""
        for node in self.nodes:
            if node in self.backward or node.op != "call_function" or qualified_name(node.target) != "aten::bmm":
                continue
            sizes = [shape_of(item) for item in (node, *node.args)]
            if not self.weights.isdisjoint(node.args) or not all(isinstance(n, int) for size in sizes for n in size):
                continue
            if sizes[0][1] > 1 and math.prod(sizes[0]) >= WIDE * max(map(math.prod, sizes[1:])):
                yield node


def _rows(node: fx.Node) -> fx.Node | None:
    """The operand that an amplifier repeats or multiplies: a product's left factor, for experts the tokens' rows."""
    name = qualified_name(node.target) if node.op == "call_function" else ""
    rows = None
    if name == "aten::addmm":
        rows = node.args[1]
    elif (
        name in PRODUCTS - {"aten::bmm"}
        or name == "aten::index"
        and len(node.args[1]) == 1
        and sorted_within(node.args[1][0])
    ):
        rows = node.args[0]
    elif name == "aten::clone" and qualified_name(node.args[0].target) == "aten::expand":
        rows = view_base(node.args[0], _is_view_of_several)  # it repeats each row once for each of its experts
        rows = rows if len(shape_of(rows)) == 2 else None
    return rows if is_tensor(rows) else None


def _is_view_of_several(node: fx.Node) -> bool:
    """Whether a node views rows in more than two dimensions."""
    return is_view(node) and len(shape_of(node)) > 2


def sorted_within(node: fx.Node) -> bool:
    """Whether an integer value comes from a sort: positions in the order of one shard, which each shard makes anew."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype is torch.bool:
        return False
    pending, seen = [node], set[fx.Node]()
    while pending and len(seen) < LOOKED_AT:
        read = pending.pop()
        if read in seen or read.op != "call_function":
            continue
        seen.add(read)
        if qualified_name(read.target) in SORTS:
            return True
        pending += read.all_input_nodes
    return False


def common_path(nodes: Sequence[fx.Node]) -> str:
    """The longest module path that all nodes with a path lie under."""
    paths = [path.split(".") for node in nodes if (path := module_path(node.meta.get("nn_module_stack")))]
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
