"""What an operator does besides its outputs, as its schema says: views, writes, draws, effects.

Facts and the planner have their own account of this (`facts/operators.py`). The two share no code, so that a mistake
there is found out here.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memgraph.base import compat

# Higher-order operators that only call a body, and the position of the body's first operand.
CALLED = {"invoke_subgraph": 2, "control_deps": 2}
RNG_WRAPPERS = {"run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state"}
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TRANSFERS = frozenset(
    f"memgraph::{name}" for name in ("offload_start", "offload_finish", "reload_start", "reload_finish")
)
_EFFECTFUL_HOPS = {"with_effects", "triton_kernel_wrapper_mutation"}
# A second run of these with the same arguments is known to repeat the first and to do nothing else. All other
# operators are ONCE.
_PURE_NAMESPACES = ("aten::", "prims::", "quantized_decomposed::")
_PURE_OPERATORS = {
    "flex_lib::zeros_and_scatter",
    "memgraph::kernel_end",
    "memgraph::part",
    "memgraph::poison",
    "memgraph::shard_add",
    "memgraph::shard_product",
    "memgraph::shard_keys",
    "memgraph::shard_put",
    "memgraph::shard_sum",
    "memgraph::shard_total",
    "memgraph::shard_whole",
    "rngprims::philox_rand",
    "transformers::grouped_mm_fallback",
    "transformers::grouped_mm_fallback_backward",
}
_PURE_HOPS = {  # pure by themselves; the bodies and operators that they are given need not be
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
_SEEDED_BY_ARGUMENT = {"rngprims::philox_rand"}  # torch tags it as random; it is a function of seed and offset


class Kind(enum.IntEnum):
    """What has to be watched about an operator. Of an operator and its bodies, the largest kind counts."""

    PURE = 0
    ONCE = 1
    """Nothing is known but its schema: it may draw, count, log or communicate."""
    RANDOM = 2
    EFFECT = 3


@dataclass(frozen=True)
class Behaviour:
    """What a call does besides its outputs."""

    kind: Kind = Kind.PURE
    once: str = ""
    """The operator in it that may run only once."""

    def __or__(self, other: Behaviour) -> Behaviour:
        return Behaviour(max(self.kind, other.kind), self.once or other.once)


HARMLESS = Behaviour()


def target_name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", None) or str(target)


def describe(node: fx.Node) -> str:
    """A node as a reader of the graph would write it, on one short line."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    arguments = [str(argument) for argument in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
    line = f"{node.name} = {node.target}({', '.join(arguments)})"
    return line if len(line) <= 160 else line[:157] + "..."


@dataclass(frozen=True)
class Schema:
    """What an operator's schema says."""

    name: str
    """Of the target, as `target_name` gives it."""
    kind: Kind = Kind.PURE
    views: tuple[tuple[int, str], ...] = ()
    """Arguments whose storage an output shares, as (position, name)."""
    writes: tuple[tuple[int, str], ...] = ()
    """Arguments that it writes to, as (position, name)."""
    returns_written: bool = False
    """Whether it returns the argument that it writes to."""
    transfer: bool = False
    """Whether it starts or finishes a copy to another tier or back."""
    copies: bool = False
    """Whether it returns what it is given, in memory of its own."""


@functools.cache
def schema_of(target: Any) -> Schema:
    """The schema of a call's target, of a higher-order operator or a Python function as well."""
    if not isinstance(target, compat.OpOverload):
        return Schema(target_name(target), _kind_of_function(target))
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
        kind = Kind.EFFECT
    elif torch.Tag.nondeterministic_seeded in target.tags and name not in _SEEDED_BY_ARGUMENT:
        kind = Kind.RANDOM
    elif compat.has_side_effect(target) and not _kept_only(name):
        kind = Kind.EFFECT
    else:
        kind = Kind.ONCE if _runs_once(target) else Kind.PURE
    return Schema(
        target_name(target),
        kind,
        tuple(views),
        tuple(writes),
        returns_written=bool(writes) and bool(returned),
        transfer=name in _TRANSFERS,
        copies=name == "memgraph::part",
    )


def _kind_of_function(target: Any) -> Kind:
    name = target_name(target)
    if name in _EFFECTFUL_HOPS:
        return Kind.EFFECT
    if (
        target is not operator.getitem
        and compat.has_side_effect(target)
        and name not in CALLED
        and "assert" not in name
    ):
        return Kind.EFFECT
    if isinstance(target, compat.HigherOrderOperator) and name not in _PURE_HOPS:
        return Kind.ONCE
    return Kind.PURE


def _kept_only(name: str) -> bool:
    """Whether an operator is marked as effectful only to keep it: a check, a mark in a profile, a wait, an end."""
    checks = "assert" in name or "sym_constrain" in name
    return checks or name.startswith(("profiler::", "_c10d_functional::", "memgraph::kernel_end"))


def _runs_once(overload: compat.OpOverload) -> bool:
    """Whether nothing is known of an operator but its schema."""
    name = overload._schema.name
    if name in _PURE_OPERATORS or name.startswith((*_PURE_NAMESPACES, "profiler::")):
        return False
    return torch.Tag.pointwise not in overload.tags and torch.Tag.reduction not in overload.tags


def behaviour_of(node: fx.Node, kind: Kind, declared: Sequence[str]) -> Behaviour:
    """What a call does by itself, without its bodies.

    kind: of its target.  declared: patterns of operators that the user vouches for.
    """
    if kind in (Kind.EFFECT, Kind.RANDOM):
        return Behaviour(kind)
    if kind == Kind.PURE and not isinstance(node.target, compat.HigherOrderOperator):
        return HARMLESS
    name = _undeclared(node, declared)
    return Behaviour(Kind.ONCE, name) if name else HARMLESS


def _undeclared(node: fx.Node, declared: Sequence[str]) -> str:
    """The operator in a call, its bodies left out, that may run only once. "": there is none."""
    target = node.target
    if target_name(target) == "triton_kernel_wrapper_functional":
        found = [f"triton::{compat.triton_kernel(node.kwargs['kernel_idx'])}"]
    elif isinstance(target, compat.HigherOrderOperator):
        given = [item for item in node.args if isinstance(item, compat.OpOverload) and _runs_once(item)]
        if drawing := [item for item in given if torch.Tag.nondeterministic_seeded in item.tags]:
            return drawing[0]._schema.name
        found = [item._schema.name for item in given]
        found += [f"higher_order::{target_name(target)}"] if schema_of(target).kind == Kind.ONCE else []
    else:
        found = [target._schema.name] if schema_of(target).kind == Kind.ONCE else []
    return next((name for name in found if not any(fnmatch.fnmatchcase(name, known) for known in declared)), "")


def takes_random_numbers(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a random operator draws: dropout of probability zero, or outside of training, does not."""
    if not isinstance(target, compat.OpOverload) or not target._schema.name.startswith("aten::"):
        return True
    for place, argument in enumerate(target._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        if (argument.name == "dropout_p" and value == 0) or (argument.name == "train" and value is False):
            return False
    return True
