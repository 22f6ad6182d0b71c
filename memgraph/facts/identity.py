"""Which graph a joint graph is: what it computes, operator by operator, and nothing of the machine it was made on.

    mm_3 = aten.mm.default(%17, %5): [64, 512] float32, strides [512, 1], in model.layers.3.mlp      one line a node

Two graphs with the same lines, modules aside, are the same graph: a plan of one is a plan of the other. What is not in
a line: addresses, paths of files, the number of a device, and the names of symbols, which are counted as they appear.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memgraph.base import compat
from memgraph.facts.regions import module_path

WORD = re.compile(r"[A-Za-z_]\w*")
INPUT, OUTPUT = "input", "output"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One node of a graph."""

    name: str
    """The name by which a plan speaks of the node."""

    operator: str
    """Such as "aten.mm.default"; "input" and "output" for those of the graph."""

    value: str
    """Shape and dtype of what it computes, such as "[64, 512] float32"; of several tensors, one after another."""

    strides: str
    """Such as "[512, 1]"."""

    arguments: str
    """What it is called with; other nodes as "%" and their place in the graph."""

    module: str
    """The dotted module path, to read: equal graphs may come from modules with other names."""

    @property
    def compared(self) -> tuple[str, ...]:
        """All that must be equal in equal graphs."""
        return self.operator, self.value, self.strides, self.arguments, self.name

    def told_beside(self, other: Line | None) -> str:
        """The line as text, with as much of it as distinguishes it from another."""
        text = self.operator + (f" of {self.value}" if self.value else "")
        if other is not None and self.operator == other.operator == INPUT:
            text = self.value or "no tensor"
        if other is not None and (self.operator, self.value) == (other.operator, other.value):
            if self.strides != other.strides:
                text += f" with strides {self.strides}"
            elif self.arguments != other.arguments:
                text += f" called with {self.arguments}"
            else:
                text += f" named {self.name!r}"
        return text + (f" in {self.module}" if self.module else "")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a joint graph computes."""

    lines: tuple[Line, ...]

    def same(self, other: Identity) -> bool:
        """Whether two graphs are the same, whatever their modules are called."""
        return self.equal_lines(other) == len(self.lines) == len(other.lines)

    def equal_lines(self, other: Identity) -> int:
        """How many lines from the start are the same."""
        pairs = itertools.takewhile(
            lambda pair: pair[0].compared == pair[1].compared, zip(self.lines, other.lines, strict=False)
        )
        return sum(1 for _ in pairs)

    def first_difference(self, here: Identity) -> str:
        """A sentence: where this graph, that of a plan, first differs from another; "" where they are the same."""
        if self.same(here):
            return ""
        place = self.equal_lines(here)
        one, two = (lines[place] if place < len(lines) else None for lines in (self.lines, here.lines))
        if one is None:
            assert two is not None  # one of two that differ goes on
            return f"the plan's graph ends after {place} lines; this graph goes on with {two.told_beside(None)}"
        kind = one.operator if one.operator in (INPUT, OUTPUT) else "operator"
        number = sum(1 for line in self.lines[: place + 1] if _kind(line) == _kind(one))
        theirs = "missing" if two is None else two.told_beside(one)
        return f"the plan's {_ordinal(number)} {kind} is {one.told_beside(two)}; this graph's is {theirs}"

    def to_rows(self) -> list[list[str]]:
        """Plain data for JSON."""
        return [[getattr(line, field.name) for field in dataclasses.fields(Line)] for line in self.lines]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[str]]) -> Identity:
        """The identity that `to_rows` wrote. Raises TypeError for any other data."""
        return cls(tuple(Line(*map(str, row)) for row in rows))


def _kind(line: Line) -> str:
    return line.operator if line.operator in (INPUT, OUTPUT) else ""


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def read_identity(joint: fx.GraphModule) -> Identity:
    """The identity of a joint graph, with the bodies that it calls."""
    return Identity(tuple(_Reader().lines(joint)))


class _Reader:
    def __init__(self) -> None:
        self._symbols: dict[str, str] = {}
        """The names of symbols as they are called here."""
        self._bodies: Counter[int] = Counter()

    def lines(self, gm: fx.GraphModule) -> Iterator[Line]:
        place = {node: number for number, node in enumerate(gm.graph.nodes)}
        for node in gm.graph.nodes:
            held = operator.attrgetter(node.target)(gm) if node.op == "get_attr" else None
            val = node.meta.get("val", held)
            yield Line(
                name=node.name,
                operator=_operator(node, held),
                value=self._each(val, self._value),
                strides=self._each(val, self._strides),
                arguments=self._arguments(node, place),
                module=module_path(node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")),
            )
            if isinstance(held, fx.GraphModule):
                self._bodies[id(held)] += 1
                if self._bodies[id(held)] == 1:  # a body that is called often is told once
                    yield from self.lines(held)

    def _each(self, val: Any, told: Any) -> str:
        parts = val if isinstance(val, list | tuple) else [val]
        return ", ".join(filter(None, map(told, parts)))

    def _value(self, val: Any) -> str:
        if isinstance(val, torch.Tensor):
            device = "" if val.device.type == "cpu" else f" on {val.device.type}"
            return f"{self._sizes(val.shape)} {str(val.dtype).removeprefix('torch.')}{device}"
        return f"size {self._plain(val)}" if isinstance(val, torch.SymInt | int | float) else ""

    def _strides(self, val: Any) -> str:
        strided = isinstance(val, torch.Tensor) and val.layout is torch.strided
        return self._sizes(val.stride()) if strided else ""

    def _sizes(self, sizes: Sequence[Any]) -> str:
        return f"[{', '.join(map(self._plain, sizes))}]"

    def _arguments(self, node: fx.Node, place: Mapping[fx.Node, int]) -> str:
        if node.op in ("placeholder", "get_attr"):
            return ""
        parts = [self._plain(arg, place) for arg in node.args]
        parts += [f"{key}={self._plain(arg, place)}" for key, arg in node.kwargs.items()]
        return f"({', '.join(parts)})"

    def _plain(self, arg: Any, place: Mapping[fx.Node, int] | None = None) -> str:
        """An argument or a size, without anything of this machine."""
        if isinstance(arg, fx.Node):
            return f"%{(place or {})[arg]}"
        if arg is None or isinstance(arg, bool | int | float | complex | str):
            return repr(arg)
        if isinstance(arg, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._expression(arg)
        if isinstance(arg, torch.device):
            return arg.type
        if isinstance(arg, list | tuple):
            return f"[{', '.join(self._plain(item, place) for item in arg)}]"
        if isinstance(arg, Mapping):
            return f"{{{', '.join(f'{key}: {self._plain(item, place)}' for key, item in arg.items())}}}"
        if isinstance(arg, slice):
            return self._plain(["slice", arg.start, arg.stop, arg.step], place)
        if isinstance(arg, torch.dtype | torch.layout | torch.memory_format):
            return str(arg)
        return getattr(arg, "__name__", type(arg).__name__)

    def _expression(self, size: Any) -> str:
        """A symbolic size, its symbols named by the order in which they appear."""
        known = {str(symbol) for symbol in compat.free_symbols(size)}

        def renamed(found: re.Match[str]) -> str:
            word = found.group()
            return self._symbols.setdefault(word, f"s{len(self._symbols)}") if word in known else word

        return WORD.sub(renamed, compat.expression_text(size))


def _operator(node: fx.Node, held: Any) -> str:
    if node.op == "placeholder":
        return INPUT
    if node.op == "output":
        return OUTPUT
    if node.op == "get_attr":
        return "body" if isinstance(held, fx.GraphModule) else "constant"
    if hasattr(node.target, "_schema"):
        return str(node.target)  # with its overload
    return str(getattr(node.target, "__name__", type(node.target).__name__))
