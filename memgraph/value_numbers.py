"""Value numbers: two nodes of any two graphs that hold the same value get the same number.

A number stands for (target, numbers of the arguments, constants), so names and places do not count. This
module has the table of numbers and what an op's schema says; `numbering` walks a graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph import compat

PURE, RANDOM, EFFECT = "pure", "random", "effect"
CALLED = {"invoke_subgraph": 2, "control_deps": 2}  # HOPs that only call a body -> where its operands begin
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TRANSFERS = ("memgraph::offload_", "memgraph::reload_")
_EFFECTFUL_HOPS = {"with_effects", "triton_kernel_wrapper_mutation"}
_SEEDED_BY_ARGUMENT = {"rngprims::philox_rand"}  # tagged random by torch, but a function of seed and offset


def target_name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", None) or str(target)


def describe(node: fx.Node) -> str:
    """A node as a reader of the graph would write it, on one short line."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    arguments = [str(argument) for argument in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
    line = f"{node.name} = {node.target}({', '.join(arguments)})"
    return line if len(line) <= 160 else line[:157] + "..."


def is_transfer(target: Any) -> bool:
    """Whether an op copies a value to another tier or back, or waits for that."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.startswith(_TRANSFERS)


@dataclass(frozen=True)
class Schema:
    """What an op's schema says: its kind, and which arguments (position, name) it views or writes to."""

    kind: str = PURE
    views: tuple[tuple[int, str], ...] = ()
    writes: tuple[tuple[int, str], ...] = ()
    returns_written: bool = False


@functools.cache
def schema_of(target: Any) -> Schema:
    if not isinstance(target, torch._ops.OpOverload):
        effect = target_name(target) in _EFFECTFUL_HOPS or (
            target is not operator.getitem
            and compat.has_side_effect(target)
            and target_name(target) not in CALLED
            and "assert" not in target_name(target)
        )
        return Schema(EFFECT if effect else PURE)
    schema, name = target._schema, target._schema.name
    views, writes = [], []
    returned = [info for value in schema.returns if (info := value.alias_info) is not None]
    for place, argument in enumerate(schema.arguments):
        if (info := argument.alias_info) is None:
            continue
        if info.is_write:
            writes.append((place, argument.name))
        elif any(info.before_set & other.before_set for other in returned):
            views.append((place, argument.name))
    if schema.is_mutable:
        kind = EFFECT
    elif torch.Tag.nondeterministic_seeded in target.tags and name not in _SEEDED_BY_ARGUMENT:
        kind = RANDOM
    elif compat.has_side_effect(target) and not _repeatable(name):
        kind = EFFECT
    else:
        kind = PURE
    return Schema(kind, tuple(views), tuple(writes), returns_written=bool(writes) and bool(returned))


def _repeatable(name: str) -> bool:
    """Marked as effectful only so that it is not erased: a check, a mark in a profile, a wait."""
    checks = "assert" in name or "sym_constrain" in name
    return checks or name.startswith(("profiler::", "_c10d_functional::"))


def draws(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a random op really draws: dropout with probability zero, or outside of training, does not."""
    for place, argument in enumerate(target._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        if (argument.name == "dropout_p" and value == 0) or (argument.name == "train" and value is False):
            return False
    return True


class Table:
    """The numbers that several graphs share."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._roots: dict[int, int] = {}  # a view -> the value whose storage it shares
        self._constants: dict[Hashable, list[tuple[torch.Tensor, int]]] = {}
        self._bodies: dict[int, tuple[fx.GraphModule, int]] = {}
        self.parts: dict[int, tuple[Any, ...]] = {}  # a tuple -> its elements
        self.overwritten: dict[int, tuple[int, int]] = {}  # a value after a write -> (before it, the write)
        self.body_kinds: dict[int, str] = {}
        self.inputs: dict[int, str] = {}
        self.copies: dict[int, tuple[int, int, int]] = {}  # a copy under way -> (how far, its start, its value)
        self.layouts: dict[int, Hashable] = {}  # the start of a copy -> what the value looks like

    def number(self, *key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def input(self, name: str) -> int:
        number = self.number("input", name)
        self.inputs[number] = name
        return number

    def root(self, number: int) -> int:
        return self._roots.get(number, number)

    def set_root(self, number: int, base: int) -> None:
        if number != base:
            self._roots[number] = self.root(base)

    def after(self, number: int, writes: dict[int, int]) -> int:
        """The contents of `number` once `writes` (storage -> the newest write to it) are done."""
        before = self.overwritten.get(number, (number, 0))[0]
        write = writes.get(self.root(before))
        if write is None:
            return number
        later = self.number("after", before, write)
        self.overwritten[later] = (before, write)
        self.set_root(later, before)
        return later

    def attribute(self, owner: fx.GraphModule, path: str) -> int:
        value = operator.attrgetter(path)(owner)
        if isinstance(value, fx.GraphModule):
            return self.body(value)
        if not isinstance(value, torch.Tensor):
            return self.number("attribute", type(value).__name__, path)
        key = (tuple(map(str, value.shape)), value.dtype, value.device, path if compat.is_fake(value) else "")
        known = self._constants.setdefault(key, [])
        for other, number in known:
            if compat.same_contents(value, other):
                return number
        known.append((value, self.number("constant", key, len(known))))
        return known[-1][1]

    def body(self, module: fx.GraphModule) -> int:
        """The number of a body's structure, whatever its nodes are called."""
        if id(module) in self._bodies:
            return self._bodies[id(module)][1]
        local: dict[fx.Node, int] = {}
        lines, kinds = [], {PURE}
        for place, node in enumerate(module.graph.nodes):
            local[node] = place
            if node.op == "get_attr":
                lines.append(("get_attr", inner := self.attribute(module, node.target)))
                kinds.add(self.body_kinds.get(inner, PURE))
            elif node.op == "placeholder":
                lines.append(("placeholder",))
            else:
                lines.append((node.target, freeze(node.args, local), freeze(node.kwargs, local)))
                kinds.add(schema_of(node.target).kind if node.op == "call_function" else PURE)
        number = self.number("body", *lines)
        self._bodies[id(module)] = (module, number)
        self.body_kinds[number] = next(kind for kind in (EFFECT, RANDOM, PURE) if kind in kinds)
        return number


def freeze(argument: Any, numbers: dict[fx.Node, int]) -> Hashable:
    """An argument as a key: nodes by number, constants by type and value (`1`, `1.0` and `True` differ)."""
    if isinstance(argument, fx.Node):
        return numbers[argument]
    if isinstance(argument, (list, tuple)):
        return ("list", *[freeze(element, numbers) for element in argument])
    if isinstance(argument, dict):
        return ("dict", *[(name, freeze(value, numbers)) for name, value in argument.items()])
    if isinstance(argument, slice):
        parts = (argument.start, argument.stop, argument.step)
        return ("slice", *[freeze(part, numbers) for part in parts])
    if isinstance(argument, (float, complex, *SYMBOLIC)):
        return (type(argument), repr(argument))  # so that nan equals itself, and -0.0 is not 0.0
    try:
        hash(argument)
    except TypeError:
        return (type(argument), repr(argument))
    return (type(argument), argument)
