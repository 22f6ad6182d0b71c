"""A graph with symbolic sizes as one with plain sizes, for code that compares sizes and may leave no guards behind.

    mul = s0 * 4; view(x[4, s0, 128], [mul, 128])        view(x[4, 10007, 128], [40028, 128])

`generic` gives each symbol a large prime. Then two sizes are equal, or one divides the other, where that is so for all
values of the symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from memgraph.base import compat


def symbolic_sizes(gm: fx.GraphModule) -> Iterator[Any]:
    """All symbolic sizes of a graph's values."""
    for node in gm.graph.nodes:
        yield from compat.sizes_in(node.meta.get("val"))


def names_of_symbols(gm: fx.GraphModule) -> list[str]:
    """The names of the symbols in a graph's sizes, sorted."""
    return sorted({str(symbol) for size in symbolic_sizes(gm) for symbol in size.node.expr.free_symbols})


def generic(names: list[str], above: int = 10_000) -> dict[str, int]:
    """A prime for each symbol, by its name; all different, and above a number."""
    found: dict[str, int] = {}
    for name in names:
        above += 1
        while any(above % divisor == 0 for divisor in range(2, int(above**0.5) + 1)):
            above += 1
        found[name] = above
    return found


def shortest(gm: fx.GraphModule, assumed: Mapping[str, int] | None = None) -> dict[str, int]:
    """The smallest value of each symbol, by its name.  assumed: what some are at least, besides what guards say."""
    assumed = assumed or {}
    return {
        str(symbol): max(compat.smallest(symbol, size), assumed.get(str(symbol), 0))
        for size in symbolic_sizes(gm)
        for symbol in size.node.expr.free_symbols
    }


def with_plain_sizes(gm: fx.GraphModule, values: Mapping[str, int]) -> fx.GraphModule:
    """A copy in which symbols have values, by their names. What computes sizes is gone; other nodes keep their names.

    The graphs that it calls are copied in the same way, and no longer take sizes as inputs. Raises GraphError for a
    size that only data decide.
    """
    with compat.reading_with(values):
        return _Copy(compat.plain_fakes()).graph(gm)


class _Copy:
    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self._called: dict[int, fx.GraphModule] = {}

    def graph(self, gm: fx.GraphModule) -> fx.GraphModule:
        graph, root = fx.Graph(), torch.nn.Module()
        new: dict[fx.Node, Any] = {}
        for node in gm.graph.nodes:
            held = node.meta.get("val")
            if isinstance(held, torch.SymInt):
                new[node] = compat.size_hint(held)
                continue
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), new.__getitem__)
            if node.target is compat.invoke_subgraph():
                args = (*args[:2], *(arg for arg in args[2:] if not isinstance(arg, int)))
            made = new[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
            made.meta = {**node.meta, "val": self.value(held)} if "val" in node.meta else dict(node.meta)
            if node.op == "get_attr":
                self._attach(root, node.target, operator.attrgetter(node.target)(gm))
        return fx.GraphModule(root, graph)

    def _attach(self, root: torch.nn.Module, path: str, held: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            if not hasattr(root, parent):
                root.add_module(parent, torch.nn.Module())
            root = getattr(root, parent)
        if isinstance(held, fx.GraphModule):
            if id(held) not in self._called:
                self._called[id(held)] = self.graph(held)
            held = self._called[id(held)]
        setattr(root, name, held)

    def value(self, held: Any) -> Any:
        """What a node holds, with plain sizes. Views get storages of their own."""
        if isinstance(held, list | tuple):
            return type(held)(map(self.value, held))
        if not isinstance(held, torch.Tensor) or held.layout is not torch.strided:
            return held
        size, stride = (tuple(map(compat.size_hint, steps)) for steps in (held.shape, held.stride()))
        with self.mode:
            return torch.empty_strided(size, stride, dtype=held.dtype, device=held.device)
