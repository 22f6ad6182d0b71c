"""The operators of a graph as numbers that say which of them do the same, whatever they and their modules are called.

Two operators do the same if their target, the plain data among their arguments, and the shapes, strides, types and
devices of what they read and make are equal. Which values they read is kept apart, as places (`Step.reads`).

Some nodes belong to no layer:

- inputs, constants, bodies, and the seeds that Inductor looks up by number: a layer is given them;
- values that are made of nothing (`full`, `iota`): whatever reads one makes it again;
- sizes that inputs of the graph decide: a layer is given their symbols.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.costs import logical_bytes
from memgraph.facts.operators import family, qualified_name, twice_is_wrong
from memgraph.facts.views import view_base

# A kernel may be compiled for addresses that are multiples of this many bytes.
ALIGNMENT = 16
TRANSFERS = frozenset(
    f"memgraph::{name}" for name in ("offload_start", "offload_finish", "reload_start", "reload_finish")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operator."""

    name: str
    does: int
    """Equal for operators that do the same."""
    reads: tuple[int, ...]
    """By place among its arguments, what it reads: a step by its place in the order, anything else as -1 - n, where
    n is its number among the values that layers are given."""
    returned: bool = False
    """Whether the graph returns it."""
    bytes: int = 0
    """The bytes of a value that Inductor writes only where a border cuts its kernel; 0 if it is written in any case."""
    shows: int = -1
    """Of a view, the place of the step that it shows; -1 for what owns its memory, or shows what is given."""
    several: bool = False
    """Whether it makes several values at once: only the getitems that take them can be read outside its layer."""
    part: bool = False
    """Whether it takes one of the values that an operator makes at once: no border lies between them and it."""
    fixed: str = ""
    """Why it can be in no body; "" where it can."""
    said: str = ""
    """The operator and what it makes, for a reader."""


def follows_from_symbols(node: fx.Node) -> bool:
    """Whether a node is a size that inputs of its graph decide, and not their entries: it follows from the symbols."""
    value = node.meta.get("val")
    if not compat.is_size(value) or not compat.is_backed(value):
        return False
    return all(read.op == "placeholder" or follows_from_symbols(read) for read in node.all_input_nodes)


def made_of_nothing(node: fx.Node) -> bool:
    """Whether a node makes a value out of plain data and sizes alone, the same whenever it runs."""
    return (
        node.op == "call_function"
        and all(map(follows_from_symbols, node.all_input_nodes))
        and isinstance(node.meta.get("val"), torch.Tensor)
        and not twice_is_wrong(node)
    )


def is_given(node: fx.Node) -> bool:
    """Whether a layer is given a node's value, or makes it again, wherever in the order the node stands."""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr")
    return compat.looks_up_seed(node.target) or made_of_nothing(node) or follows_from_symbols(node)


def steps_of(gm: fx.GraphModule, repeatable: Iterable[str] = ()) -> tuple[Step, ...]:
    """The operators of a graph that can belong to layers, in order.

    repeatable: patterns of the operators that the user has declared to be so.
    """
    return _Reader(gm, tuple(repeatable)).steps()


class _Reader:
    """Reads one graph."""

    def __init__(self, gm: fx.GraphModule, repeatable: tuple[str, ...]) -> None:
        self.gm, self.repeatable = gm, repeatable
        self.nodes = [node for node in gm.graph.nodes if node.op == "call_function" and not is_given(node)]
        self.place = {node: n for n, node in enumerate(self.nodes)}
        self.given: dict[fx.Node, int] = {}
        self.numbers: dict[Hashable, int] = {}
        self.looks: dict[fx.Node, Hashable] = {}
        self.unknown: dict[fx.Node, str] = {}
        inputs = gm.graph.find_nodes(op="placeholder")
        self.symbols = {compat.bound_symbol(node.meta.get("val")) for node in inputs}

    def steps(self) -> tuple[Step, ...]:
        returned = set(self.gm.graph.output_node().all_input_nodes)
        return tuple(self._step(node, node in returned) for node in self.nodes)

    def _step(self, node: fx.Node, returned: bool) -> Step:
        reads: list[fx.Node] = []
        told = (self._frozen(node.args, reads), self._frozen(node.kwargs, reads))
        written = bool(node.meta.get(compat.WRITTEN))
        does = (node.target, told, tuple(map(self._look, reads)), self._look(node), written)
        base, fixed = view_base(node), self._fixed(node)
        return Step(
            node.name,
            self.numbers.setdefault(does, len(self.numbers)),
            tuple(map(self._number, reads)),
            returned,
            0 if returned or written or fixed else _fused_bytes(node),
            self.place.get(base, -1) if base is not node else -1,
            isinstance(node.meta.get("val"), list | tuple),
            node.target is operator.getitem,
            fixed,
            f"{node.target} {_said(node.meta.get('val'))}",
        )

    def _number(self, read: fx.Node) -> int:
        place = self.place.get(read)
        return place if place is not None else -1 - self.given.setdefault(read, len(self.given))

    def _look(self, node: fx.Node) -> Hashable:
        if node not in self.looks:
            self.looks[node] = self._made(node) if made_of_nothing(node) else look(node.meta.get("val"))
        return self.looks[node]

    def _made(self, node: fx.Node) -> Hashable:
        nothing: list[fx.Node] = []
        told = (self._frozen(node.args, nothing), self._frozen(node.kwargs, nothing))
        return (node.target, told, look(node.meta.get("val")))

    def _frozen(self, argument: Any, reads: list[fx.Node]) -> Hashable:
        """An argument that can be compared. Nodes are added to `reads`; bodies are told by name, sizes as text."""
        if isinstance(argument, fx.Node):
            if self._is_body(argument):
                return ("body", argument.target)
            if follows_from_symbols(argument):
                return self._frozen(argument.meta["val"], reads)
            reads.append(argument)
            return _READ
        if isinstance(argument, list | tuple):
            return ("list", *[self._frozen(item, reads) for item in argument])
        if isinstance(argument, Mapping):
            return ("dict", *[(key, self._frozen(item, reads)) for key, item in argument.items()])
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            return (type(argument), compat.expression_text(argument))
        if isinstance(argument, float | complex | slice) or getattr(argument, "__hash__", None) is None:
            return (type(argument), repr(argument))
        return (type(argument), argument)

    def _is_body(self, node: fx.Node) -> bool:
        return node.op == "get_attr" and isinstance(operator.attrgetter(node.target)(self.gm), fx.GraphModule)

    def _fixed(self, node: fx.Node) -> str:
        if unknown := next(filter(None, map(self._unknown, (node, *node.all_input_nodes))), ""):
            return unknown
        if qualified_name(node.target) in TRANSFERS:
            return "copies a value to another tier or back"
        if compat.has_side_effect(node.target) and node.target is not compat.invoke_subgraph():
            return "has side effects"
        fixed = twice_is_wrong(node, self.repeatable)
        return str(fixed) if fixed else ""

    def _unknown(self, node: fx.Node) -> str:
        """Why the sizes of a node's value are not known before the graph runs; "" where they are."""
        if node not in self.unknown:
            self.unknown[node] = self._why_unknown(node)
        return self.unknown[node]

    def _why_unknown(self, node: fx.Node) -> str:
        value, made = node.meta.get("val"), made_of_nothing(node)
        if _is_plain(value) and not (made and node.all_input_nodes):
            return ""
        if self._is_body(node):
            return ""
        if not follows_from_symbols(node) and not _is_known(value):
            return "has sizes that are not known yet"
        told = [value, *(read.meta.get("val") for read in node.all_input_nodes if made)]
        symbols = {symbol for size in told for symbol in compat.symbols_in(size)}
        return "" if self.symbols.issuperset(symbols) else "has sizes whose symbols the graph is not given"


_READ = ("read",)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor without symbols."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and set(map(type, (*value.shape, *value.stride()))) <= {int}
    )


def _is_known(value: Any) -> bool:
    """Whether a value is a tensor of sizes that inputs decide, or a tuple of such."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return _is_plain(value) or (value.layout is torch.strided and all(map(_is_decided, sizes)))
    return isinstance(value, list | tuple) and all(map(_is_known, value))


def _is_decided(size: Any) -> bool:
    return type(size) is int or (compat.is_size(size) and compat.is_backed(size))


def look(value: Any) -> Hashable:
    """How a value lies in memory: shape, strides, type, device, and how far its first entry is from an aligned one."""
    if isinstance(value, torch.Tensor):
        if not _is_known(value):
            return (str(value.shape), value.dtype, str(value.device))
        off = _told(value.storage_offset() * value.element_size() % ALIGNMENT)
        sizes, strides = (tuple(map(_told, steps)) for steps in (value.shape, value.stride()))
        return (sizes, strides, value.dtype, str(value.device), off)
    if isinstance(value, list | tuple):
        return ("tuple", *map(look, value))
    return (type(value).__name__, str(value))


def _told(size: Any) -> int | str:
    """A size as what it can be compared by."""
    return size if isinstance(size, int) else compat.expression_text(size)


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return ""


def _fused_bytes(node: fx.Node, kind: Callable[[Any], str] = family) -> int:
    """The bytes of a value that Inductor may never write to memory; 0 where a kernel of its own makes or reads it."""
    if kind(node.target) != "pointwise":
        return 0
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user.op != "call_function" or kind(user.target) == "extern":
            return 0
        if kind(user.target) == "view":
            pending += user.users
    return logical_bytes(node.meta.get("val"))
