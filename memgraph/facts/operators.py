"""What is known of an operator without running it: does it view, fuse, draw, mutate, and may it run twice?

An operator runs twice only where something says that this is the same as running it once: its schema and tags for the
operators of torch, the option `repeatable` or the tag `pointwise` or `reduction` for those of others.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import fx
from torch.fx import Node

from memgraph.base import compat
from memgraph.facts.actions import Fixed, FixedKind

Family = Literal["view", "pointwise", "reduction", "extern", "getitem", "symbol"]


def aten_names(names: str) -> frozenset[str]:
    """The qualified names of some of aten's operators."""
    return frozenset(f"aten::{name}" for name in names.split())


# Inductor inlines these into the kernels of their readers although torch does not tag them pointwise.
GATHERS = aten_names(
    "embedding index gather index_select full full_like arange scalar_tensor new_ones new_zeros new_full ones zeros "
    "ones_like zeros_like empty empty_like constant_pad_nd cat clone _to_copy select_scatter slice_scatter flip repeat "
    "roll triu tril where copy lift_fresh_copy expand_copy rsqrt _unsafe_index diagonal_scatter _unsafe_masked_index "
    "upsample_nearest2d slice_backward select_backward"
)
REDUCTIONS = aten_names(
    "sum mean amax amin max min any all argmax argmin prod var var_mean std _softmax _log_softmax logsumexp "
    "native_layer_norm native_group_norm _softmax_backward_data _log_softmax_backward_data "
    # Scatters read their inputs inlined, and write into the tensor that they start from.
    "index_put _unsafe_index_put _unsafe_masked_index_put_accumulate scatter scatter_add scatter_reduce index_add"
) | frozenset("prims::sum prims::prod prims::amax prims::amin prims::var prims::xor_sum".split())
# These return their input's storage although their schema does not say so.
SILENT_VIEWS = aten_names("_unsafe_view")
EFFICIENT_ATTENTION = "aten::_scaled_dot_product_efficient_attention"
# The modules of the functions that compute with symbolic sizes.
ARITHMETIC = frozenset(("_operator", "math", "torch"))

# Namespaces in which an operator's schema and tags say all that it does.
DESCRIBED = frozenset(("aten", "prims", "quantized_decomposed"))
# Operators of other namespaces of which their source says the same.
COMPUTES = frozenset(
    "memgraph::shard_whole memgraph::shard_put memgraph::shard_product memgraph::shard_add memgraph::shard_keys "
    "memgraph::shard_total memgraph::shard_sum memgraph::poison flex_lib::zeros_and_scatter "
    "transformers::grouped_mm_fallback transformers::grouped_mm_fallback_backward".split()
)
# Higher-order operators that run the bodies and operators that they are given, and do nothing else.
RUNS_WHAT_IT_IS_GIVEN = frozenset(
    "invoke_subgraph control_deps flex_attention flex_attention_backward cond switch while_loop "
    "while_loop_stack_output scan associative_scan map_impl out_dtype invoke_quant invoke_quant_packed "
    "auto_functionalized auto_functionalized_v2 triton_kernel_wrapper_functional".split()
)
HAVE_EFFECTS = frozenset(
    "with_effects call_torchbind print invoke_leaf_function triton_kernel_wrapper_mutation".split()
)
COLLECTIVES = frozenset("c10d c10d_functional _c10d_functional _c10d_functional_autograd _dtensor symm_mem".split())
SIZED_BY_DATA = frozenset("item _local_scalar_dense nonzero masked_select prims::item".split())
SIZED_BY_DATA_TAGS = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
# An author who tags an operator with one of these says that its output is a function of its input's entries.
COMPUTES_TAGS = frozenset((torch.Tag.pointwise, torch.Tag.reduction))

DRAWS = Fixed(FixedKind.DRAWS, "draws random numbers")
MUTATES = Fixed(FixedKind.MUTATES, "mutates its arguments")
HAS_EFFECTS = Fixed(FixedKind.HAS_EFFECTS, "has side effects")
COMMUNICATES = Fixed(FixedKind.COMMUNICATES, "is a collective")
SIZED = Fixed(FixedKind.SIZED_BY_DATA, "has an output whose size depends on data")


@functools.lru_cache(maxsize=4096)
def qualified_name(target: Any) -> str:
    """An operator with its namespace, `aten::mm`, the same for all of its overloads; "" for what is no operator.

    target: an overload, an operator with all of its overloads, or the name itself. All decisions go by this name: a
    user's `mylib::mul` is not aten's.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, compat.HigherOrderOperator):
        return f"higher_order::{target.__name__}"
    return str(getattr(getattr(target, "overloadpacket", target), "_qualified_op_name", ""))


@functools.lru_cache(maxsize=4096)
def short_name(target: Any) -> str:
    """A target's name for a reader: `mm` for an operator of aten, `mylib::mul`, `_operator.mul` for others."""
    name = qualified_name(target)
    if name:
        return name.removeprefix("aten::")
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', str(target))}"


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument by its name in the operator's schema; `default` where that has neither it nor a default for it."""
    schema = getattr(node.target, "_schema", None)
    for place, known in enumerate(schema.arguments if schema is not None else ()):
        if known.name == name:
            if place < len(node.args):
                return node.args[place]
            return node.kwargs.get(name, known.default_value if known.has_default_value() else default)
    return default


@functools.lru_cache(maxsize=4096)
def family(target: Any) -> Family:
    """How a target behaves in memory: a view allocates nothing, a pointwise value may never be materialised."""
    if target is operator.getitem:
        return "getitem"
    schema = getattr(target, "_schema", None)
    if schema is None:
        return "symbol" if getattr(target, "__module__", "") in ARITHMETIC else "extern"
    name = qualified_name(target)
    if name in SILENT_VIEWS:
        return "view"
    if not schema.is_mutable and any(r.alias_info is not None for r in schema.returns):
        return "view"
    if name.startswith("aten::sym_"):
        return "symbol"
    namespace = name.partition("::")[0]
    if namespace not in ("aten", "prims"):
        return "extern"
    if torch.Tag.pointwise in target.tags or name in GATHERS:
        return "pointwise"
    if name in REDUCTIONS:
        return "reduction"
    if namespace == "prims" and len(schema.returns) == 1 and not schema.is_mutable:
        return "pointwise"
    return "extern"


def lies_on_the_host(node: Node) -> bool:
    """Whether a value lies on the host though its metadata says CUDA: torch's kernel decides, its fake does not tell.

    Efficient attention returns the seed and the offset of its dropout so, outside of a CUDA graph
    (aten/src/ATen/native/transformers/cuda/attention.cu).
    """
    if node.target is not operator.getitem:
        return False
    made, number = node.args
    if not isinstance(made, Node):
        return False
    if made.target is compat.invoke_subgraph():  # a tile, or equal layers
        returned = next(_bodies(made)).graph.output_node().args[0][number]
        return isinstance(returned, Node) and lies_on_the_host(returned)
    return qualified_name(made.target) == EFFICIENT_ATTENTION and number in (2, 3)


def draws(node: Node) -> bool:
    """Whether the node draws random numbers that a second run would not draw again."""
    target = node.target
    if compat.inductor_pure_random(target):
        return False
    tags = getattr(target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    if not described(target):
        return True
    arguments = _arguments(node)
    for key in ("dropout_p", "p"):
        if key in arguments:
            return arguments[key] != 0
    return True


def twice_is_wrong(node: Node, repeatable: Sequence[str] = ()) -> Fixed | None:
    """Why the node must not run a second time in the backward; None where it may.

    repeatable: patterns of the operators that the user has declared.  A checkpoint of the user's own runs what is in it
    twice, memgraph or not: there an operator needs no declaration.
    """
    if node.target is operator.getitem and isinstance(node.args[0], Node) and node.args[0].op == "call_function":
        return twice_is_wrong(node.args[0], repeatable)
    return _twice_is_wrong(node, tuple(repeatable), checkpointed(node))


def checkpointed(node: Node) -> bool:
    """Whether the user's own checkpoint asks to run a node again."""
    return getattr(node.meta.get("recompute"), "name", "") in ("MUST_RECOMPUTE", "PREFER_RECOMPUTE")


def _twice_is_wrong(node: Node, repeatable: tuple[str, ...], asked: bool) -> Fixed | None:
    if draws(node):
        return DRAWS
    target = node.target
    if isinstance(target, compat.HigherOrderOperator):
        return _of_higher_order(node, repeatable, asked)
    if getattr(target, "_schema", None) is None:
        return None
    return _of_schema(target) or (None if asked else _undeclared(target, repeatable))


@functools.lru_cache(maxsize=4096)
def _of_schema(target: Any) -> Fixed | None:
    """Why nobody may run an operator twice, whatever was declared."""
    if target._schema.is_mutable:
        return MUTATES
    by_tag = not described(target) and not SIZED_BY_DATA_TAGS.isdisjoint(target.tags)
    return SIZED if by_tag or short_name(target) in SIZED_BY_DATA else None


@functools.lru_cache(maxsize=4096)
def _undeclared(target: Any, repeatable: tuple[str, ...]) -> Fixed | None:
    """Why an operator must not run twice unless somebody who knows says that it may."""
    name = target._schema.name
    if name.split("::")[0] in COLLECTIVES:
        return COMMUNICATES
    if described(target) or name in COMPUTES or not COMPUTES_TAGS.isdisjoint(target.tags):
        return None
    return undeclared(name, repeatable)


def described(target: Any) -> bool:
    """Whether the schema and the tags of an operator say all that it does."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.name.split("::")[0] in DESCRIBED


def undeclared(name: str, repeatable: Sequence[str]) -> Fixed | None:
    """Why an operator that memgraph does not know must not run twice; None where the user has declared it."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in repeatable):
        return None
    text = f"calls {name}, which is not declared repeatable (option 'repeatable': [{name!r}])"
    return Fixed(FixedKind.UNDECLARED, text)


def _of_higher_order(node: Node, repeatable: tuple[str, ...], asked: bool) -> Fixed | None:
    name = node.target.__name__
    if name in HAVE_EFFECTS or "rng_state" in name:
        return HAS_EFFECTS
    if name not in RUNS_WHAT_IT_IS_GIVEN:
        return None if asked else undeclared(short_name(node.target), repeatable)
    if name == "triton_kernel_wrapper_functional":
        return None if asked else undeclared(f"triton::{compat.triton_kernel(node.kwargs['kernel_idx'])}", repeatable)
    given = [item for item in node.args if isinstance(item, compat.OpOverload)]
    reasons: list[Fixed | None] = [DRAWS for item in given if torch.Tag.nondeterministic_seeded in item.tags]
    reasons += [_undeclared(item, repeatable) for item in given if not asked]
    reasons += [_twice_is_wrong(inside, repeatable, asked) for body in _bodies(node) for inside in body.graph.nodes]
    return next(filter(None, reasons), None)


def _bodies(node: Node) -> Iterator[fx.GraphModule]:
    for read in node.all_input_nodes:
        if read.op == "get_attr":
            value = operator.attrgetter(read.target)(node.graph.owning_module)
            if isinstance(value, fx.GraphModule):
                yield value


def _arguments(node: Node) -> dict[str, Any]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return dict(node.kwargs)
    named = {arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()}
    named.update(zip((arg.name for arg in schema.arguments), node.args, strict=False))
    named.update(node.kwargs)
    return named
