"""A joint graph as the search for token-parallel regions sees it, and what such a region is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import fx

from memgraph.facts.operators import family, short_name
from memgraph.facts.regions import module_path
from memgraph.facts.tokens.states import State, is_tensor, shape_of

# What makes a token's row this many times longer starts a region; what is longer at all belongs to it. Numbers are
# counted, not bytes: the mask of a ReLU is part of its MLP.
WIDE = 1.5
PRODUCTS = frozenset(("mm", "addmm", "bmm", "_grouped_mm", "transformers::grouped_mm_fallback"))
# Under this key a call of a tile says, in its metadata, which nodes of the joint graph its outputs stand for, in order.
STANDS_FOR = "tile_stands_for"


@dataclasses.dataclass(frozen=True)
class Region:
    """A token-parallel region of a joint graph, by the names of its nodes, in the graph's order.

    kind: "loss" where the wide values are only reduced, "mlp" where a product makes them thin again.
    module: the path of the module that it is from, "" where the graph has none.  tokens: in all.
    forward, backward: its nodes; the backward's are those that depend on a tangent.
    inputs: what it reads from outside.  outputs: what is read outside.  states: of its nodes and inputs.
    wide_bytes: of all its wide values together.  row_bytes: of the widest value, a token.
    tangent: the one scalar tangent that its backward depends on, where that is all it depends on; else "". chain: what
    is computed from it on the way to the region, in order.
    """

    kind: str
    module: str
    tokens: int
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: Mapping[str, State]
    wide_bytes: int
    row_bytes: int
    tangent: str = ""
    chain: tuple[str, ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((*self.forward, *self.backward))


@dataclasses.dataclass(frozen=True)
class Refused:
    """A stretch with wide values that cannot be tiled.  module: its path.  node: the operator that stops it."""

    module: str
    node: str
    reason: str


class TokenGraph:
    """What all regions of one joint graph share."""

    def __init__(self, joint: fx.GraphModule, weights: Collection[str] = ()) -> None:
        self.nodes = [node for node in joint.graph.nodes if node.op != "output"]
        self.place = {node: n for n, node in enumerate(joint.graph.nodes)}
        self.backward: set[fx.Node] = set()
        self.weights: set[fx.Node] = set()
        self.dead: set[fx.Node] = set()  # what nobody reads
        for node in self.nodes:
            reads = node.all_input_nodes
            if node.op == "placeholder":
                if "tangent" in node.name or "bwd_rng" in node.name:
                    self.backward.add(node)
                elif node.name in weights:
                    self.weights.add(node)
            elif self.backward.intersection(reads) or node.meta.get("partitioner_tag") == "must_be_in_backward":
                self.backward.add(node)
            elif reads and self.weights.issuperset(reads):
                self.weights.add(node)

        for node in reversed(self.nodes):
            if node.op == "call_function" and self.dead.issuperset(node.users) and not node.is_impure():
                self.dead.add(node)

    def amplifiers(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Forward operators that make a token's row wider, and the matrix whose rows are the tokens."""
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


def _rows(node: fx.Node) -> fx.Node | None:
    """The operand that an amplifier repeats or multiplies: of products the left one, of experts' rows the tokens'."""
    name = short_name(node.target) if node.op == "call_function" else ""
    rows = None
    if name == "addmm":
        rows = node.args[1]
    elif (
        name in PRODUCTS
        and name != "bmm"
        or name == "index"
        and len(node.args[1]) == 1
        and sorted_within(node.args[1][0])
    ):
        rows = node.args[0]
    elif name == "clone" and short_name(node.args[0].target) == "expand":  # each row once for each of its experts
        rows = node.args[0]
        while rows.op == "call_function" and family(rows.target) == "view" and len(shape_of(rows)) > 2:
            rows = rows.args[0]
        rows = rows if len(shape_of(rows)) == 2 else None
    return rows if is_tensor(rows) else None


def sorted_within(node: fx.Node) -> bool:
    """Whether an integer value comes from a sort: places in the order of one shard, made anew for each."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype is torch.bool:
        return False
    pending, seen = [node], set()
    while pending and len(seen) < 12:
        read = pending.pop()
        if read in seen or read.op != "call_function":
            continue
        seen.add(read)
        if short_name(read.target) in ("sort", "argsort"):
            return True
        pending += read.all_input_nodes
    return False


def common_path(nodes: Sequence[fx.Node]) -> str:
    """The longest path that all nodes with a path lie under."""
    paths = [path.split(".") for node in nodes if (path := module_path(node.meta.get("nn_module_stack")))]
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
