"""Value numbers: two nodes of any two graphs that hold the same value get the same number.

A number stands for (target, numbers of the arguments, constants), so names and places do not count. This
module has the table of numbers and what an op's schema says; `numbering` walks a graph.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat

PURE, ONCE, RANDOM, EFFECT = "pure", "once", "random", "effect"
CALLED = {"invoke_subgraph": 2, "control_deps": 2}  # HOPs that only call a body -> where its operands begin
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TRANSFERS = ("memgraph::offload_", "memgraph::reload_")
_EFFECTFUL_HOPS = {"with_effects", "triton_kernel_wrapper_mutation"}
# Operators whose second run with the same arguments is known to be nothing but the first one again; all others are
# ONCE. The planner has its own list: what it takes for repeatable by mistake is found out here.
_PURE_NAMESPACES = ("aten::", "prims::", "quantized_decomposed::")
_PURE_OPERATORS = {
    "flex_lib::zeros_and_scatter",
    "memgraph::poison",
    "memgraph::shard_add",
    "memgraph::shard_product",
    "memgraph::shard_put",
    "memgraph::shard_whole",
    "rngprims::philox_rand",
    "transformers::grouped_mm_fallback",
    "transformers::grouped_mm_fallback_backward",
}
_PURE_HOPS = {  # but for the bodies and the operators that they are given
    "associative_scan",
    "auto_functionalized",
    "auto_functionalized_v2",
    "cond",
    "control_deps",
    "flex_attention",
    "flex_attention_backward",
    "invoke_quant",
    "invoke_quant_packed",
    "invoke_subgraph",
    "map_impl",
    "out_dtype",
    "scan",
    "switch",
    "while_loop",
    "while_loop_stack_output",
}
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
        hop = isinstance(target, torch._ops.HigherOrderOperator)
        return Schema(EFFECT if effect else ONCE if hop and target_name(target) not in _PURE_HOPS else PURE)
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
    elif compat.has_side_effect(target) and not _kept_only(name):
        kind = EFFECT
    else:
        kind = ONCE if _runs_once(target) else PURE
    return Schema(kind, tuple(views), tuple(writes), returns_written=bool(writes) and bool(returned))


def _kept_only(name: str) -> bool:
    """Marked as effectful only so that it is not erased: a check, a mark in a profile, a wait."""
    checks = "assert" in name or "sym_constrain" in name
    return checks or name.startswith(("profiler::", "_c10d_functional::"))


def _runs_once(overload: torch._ops.OpOverload) -> bool:
    """Whether nothing is known of an operator but its schema: it may draw, count, log or communicate."""
    name = overload._schema.name
    if name in _PURE_OPERATORS or name.startswith((*_PURE_NAMESPACES, "profiler::")):
        return False
    return torch.Tag.pointwise not in overload.tags and torch.Tag.reduction not in overload.tags


def undeclared(node: fx.Node, declared: Sequence[str]) -> str:
    """The operator in a call, not counting its bodies, that may run only once; "" where there is none.

    declared: patterns of the operators that the user vouches for.
    """
    target = node.target
    if target_name(target) == "triton_kernel_wrapper_functional":
        found = [f"triton::{compat.triton_kernel(node.kwargs['kernel_idx'])}"]
    elif isinstance(target, torch._ops.HigherOrderOperator):
        given = [item for item in node.args if isinstance(item, torch._ops.OpOverload) and _runs_once(item)]
        if drawing := [item for item in given if torch.Tag.nondeterministic_seeded in item.tags]:
            return drawing[0]._schema.name
        found = [item._schema.name for item in given]
        found += [f"higher_order::{target_name(target)}"] if schema_of(target).kind == ONCE else []
    else:
        found = [target._schema.name] if schema_of(target).kind == ONCE else []
    return next((name for name in found if not any(fnmatch.fnmatchcase(name, known) for known in declared)), "")


def draws(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a random op really draws: dropout with probability zero, or outside of training, does not."""
    if not target._schema.name.startswith("aten::"):
        return True
    for place, argument in enumerate(target._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        if (argument.name == "dropout_p" and value == 0) or (argument.name == "train" and value is False):
            return False
    return True


class Table:
    """The numbers that several graphs share.  declared: patterns of the operators that the user vouches for."""

    def __init__(self, declared: Sequence[str] = ()) -> None:
        self._declared = tuple(declared)
        self._numbers: dict[Hashable, int] = {}
        self._roots: dict[int, int] = {}  # a view -> the value whose storage it shares
        self._constants: dict[Hashable, list[tuple[torch.Tensor, int]]] = {}
        self._bodies: dict[int, tuple[fx.GraphModule, int]] = {}
        self.parts: dict[int, tuple[Any, ...]] = {}  # a tuple -> its elements
        self.overwritten: dict[int, tuple[int, int]] = {}  # a value after a write -> (before it, the write)
        self.body_kinds: dict[int, str] = {}
        self.body_once: dict[int, str] = {}  # a body -> the operator in it that may run only once
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

    def kind_of(self, node: fx.Node) -> tuple[str, str]:
        """What a call is by itself, not counting its bodies, and the operator in it that may run only once."""
        if node.op != "call_function":
            return PURE, ""
        kind = schema_of(node.target).kind
        if kind in (EFFECT, RANDOM):
            return kind, ""
        plain = kind == PURE and not isinstance(node.target, torch._ops.HigherOrderOperator)
        name = "" if plain else undeclared(node, self._declared)
        return (ONCE, name) if name else (PURE, "")

    def body(self, module: fx.GraphModule) -> int:
        """The number of a body's structure, whatever its nodes are called."""
        if id(module) in self._bodies:
            return self._bodies[id(module)][1]
        local: dict[fx.Node, int] = {}
        lines, kinds, once = [], {PURE}, ""
        for place, node in enumerate(module.graph.nodes):
            local[node] = place
            if node.op == "get_attr":
                lines.append(("get_attr", inner := self.attribute(module, node.target)))
                kinds.add(self.body_kinds.get(inner, PURE))
                once = once or self.body_once.get(inner, "")
            elif node.op == "placeholder":
                lines.append(("placeholder",))
            else:
                lines.append((node.target, freeze(node.args, local), freeze(node.kwargs, local)))
                kind, name = self.kind_of(node)
                kinds.add(kind)
                once = once or name
        number = self.number("body", *lines)
        self._bodies[id(module)] = (module, number)
        self.body_kinds[number] = next(kind for kind in (EFFECT, RANDOM, ONCE, PURE) if kind in kinds)
        if once:
            self.body_once[number] = once
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
