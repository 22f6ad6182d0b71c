"""What stands in the positions, truth values and constants that a mask is made of, at the sizes of the graph.

A shard that is given a part of the keys computes the same only where the mask hides the others, and that depends on
positions: random ones would not do. They are thin (a number for each query, or for each key), so they are computed
whole, from random data, by the operators of the joint graph; a trial takes of them the places that it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from memgraph.base import compat
from memgraph.verify.execute import Execution, Misfit
from memgraph.verify.smaller import Sizes

# So many entries a value may have.
MOST = 1 << 24


class Unreal(Exception):
    """Values that cannot be computed at their real sizes."""


@dataclass(frozen=True)
class Real:
    """The operators that make some values of a joint graph."""

    graph: fx.Graph
    names: tuple[str, ...]
    """Of the values, in the order in which the graph returns them."""

    def values(self, seed: int) -> dict[str, torch.Tensor]:
        """The values, made of random data: whole numbers among it are 0 or 1.  Raises Unreal."""
        with compat.really(), torch.no_grad():
            given = self.graph.find_nodes(op="placeholder")
            data = [_drawn(node.meta["val"], seed + n) for n, node in enumerate(given)]
            try:
                made = Execution(Sizes({}, {})).run(self.graph, data)
            except (Misfit, MemoryError, torch.OutOfMemoryError) as problem:
                raise Unreal(f"what its mask is made of cannot be computed: {problem}") from problem
        return dict(zip(self.names, made, strict=True))


def real(nodes: Mapping[str, fx.Node], names: Sequence[str]) -> Real:
    """What makes those values among `names` that are whole numbers, truth values or constants.  Raises Unreal.

    nodes: of the joint graph, by name, in its order.
    """
    wanted = [name for name in names if _is_whole(nodes[name].meta.get("val")) or _is_constant(nodes[name])]
    needed, pending = set(wanted), [nodes[name] for name in wanted]
    while pending:
        node = pending.pop()
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or math.prod(value.shape) > MOST:
            raise Unreal(f"what its mask is made of cannot be computed: {node.name} is too large, or no tensor")
        new = [read for read in node.all_input_nodes if read.name not in needed]
        needed.update(read.name for read in new)
        pending += new
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for name, node in nodes.items():
        if name in needed:
            made[node] = (
                graph.node_copy(node, made.__getitem__) if node.op == "call_function" else graph.placeholder(name)
            )
            made[node].meta["val"] = node.meta["val"]
    graph.output(tuple(made[nodes[name]] for name in wanted))
    return Real(graph, tuple(wanted))


def _is_whole(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)


def _is_constant(node: fx.Node) -> bool:
    """Whether a value is made of nothing that the graph is given."""
    found, pending = {node}, [node]
    while pending:
        part = pending.pop()
        if part.op != "call_function":
            return False
        new = set(part.all_input_nodes) - found
        found |= new
        pending += new
    return True


def _drawn(value: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if _is_whole(value):
        return torch.randint(0, 2, value.shape, generator=generator).to(value.dtype)
    return torch.randn(value.shape, generator=generator).to(value.dtype)
