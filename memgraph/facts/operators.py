"""What is known of an operator without running it: does it view, fuse, draw, mutate, and may it run twice?"""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal

import torch
from torch.fx import Node

from memgraph import compat

Family = Literal["view", "pointwise", "reduction", "extern", "getitem", "symbol"]

# Inductor inlines these into the kernels of their readers although torch does not tag them pointwise.
GATHERS = frozenset(
    "embedding index gather index_select iota full full_like arange scalar_tensor new_ones new_zeros "
    "new_full ones zeros ones_like zeros_like empty empty_like constant_pad_nd cat clone "
    "convert_element_type _to_copy select_scatter slice_scatter flip repeat roll triu tril where copy "
    "lift_fresh_copy expand_copy inductor_random inductor_lookup_seed inductor_randint fma rsqrt "
    "_unsafe_index diagonal_scatter _unsafe_masked_index upsample_nearest2d slice_backward "
    "select_backward".split()
)
REDUCTIONS = frozenset(
    "sum mean amax amin max min any all argmax argmin prod var var_mean std _softmax _log_softmax logsumexp "
    "native_layer_norm native_group_norm _softmax_backward_data _log_softmax_backward_data "
    # Scatters read their inputs inlined, and write into the tensor that they start from.
    "index_put _unsafe_index_put _unsafe_masked_index_put_accumulate scatter scatter_add scatter_reduce "
    "index_add".split()
)
# These return their input's storage although their schema does not say so.
SILENT_VIEWS = frozenset(("_unsafe_view",))


@functools.lru_cache(maxsize=4096)
def short_name(target: Any) -> str:
    """`aten.mm.default` -> `mm`."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return schema.name.split("::")[-1]
    return getattr(target, "__name__", str(target))


@functools.lru_cache(maxsize=4096)
def family(target: Any) -> Family:
    """How a target behaves in memory: a view allocates nothing, a pointwise value may never be materialised."""
    if target is operator.getitem:
        return "getitem"
    schema = getattr(target, "_schema", None)
    if schema is None:
        return "symbol" if getattr(target, "__module__", "") in ("_operator", "math", "torch") else "extern"
    name = short_name(target)
    if name in SILENT_VIEWS:
        return "view"
    if not schema.is_mutable and any(r.alias_info is not None for r in schema.returns):
        return "view"
    if name.startswith("sym_"):
        return "symbol"
    namespace = schema.name.split("::")[0]
    if namespace not in ("aten", "prims"):
        return "extern"
    if torch.Tag.pointwise in target.tags or name in GATHERS:
        return "pointwise"
    if name in REDUCTIONS:
        return "reduction"
    if namespace == "prims" and len(schema.returns) == 1 and not schema.is_mutable:
        return "pointwise"
    return "extern"


def draws(node: Node) -> bool:
    """Whether the node draws random numbers that a second run would not draw again."""
    target = node.target
    if compat.inductor_pure_random(target):
        return False
    tags = getattr(target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    arguments = _arguments(node)
    for key in ("dropout_p", "p"):
        if key in arguments:
            return arguments[key] != 0
    return True


def twice_is_wrong(node: Node) -> str:
    """Why the node must not run a second time in the backward, or "" where it may."""
    target = node.target
    if draws(node):
        return "draws random numbers"
    schema = getattr(target, "_schema", None)
    if schema is not None:
        if schema.is_mutable:
            return "mutates its arguments"
        namespace = schema.name.split("::")[0]
        if "c10d" in namespace or namespace == "bucketing":
            return "is a collective"
        if short_name(target) in ("item", "_local_scalar_dense", "nonzero", "masked_select"):
            return "has an output whose size depends on data"
        return ""
    if family(target) in ("getitem", "symbol"):
        return ""
    name = short_name(target)
    if "with_effects" in name or "rng_state" in name or "auto_functionalized" in name:
        return "has side effects"
    if name == "invoke_subgraph":
        body = node.graph.owning_module.get_submodule(node.args[0].target)
        return next((why for inside in body.graph.nodes if (why := twice_is_wrong(inside))), "")
    return ""


def _arguments(node: Node) -> dict[str, Any]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(node.kwargs)
    named = {arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()}
    named.update(zip((arg.name for arg in schema.arguments), node.args, strict=False))
    named.update(node.kwargs)
    return named
