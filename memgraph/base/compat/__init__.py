"""Every private import from torch, in one place: a file for each part of torch.

tests/base/test_canary.py names each of them, and says what memgraph leans on. Where the supported versions (2.11, 2.13
and 2.15) differ, the shim names the versions that need it and the change of torch that makes it unnecessary.
"""

from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from memgraph.base.compat.again import Captured, captured, compiling_again, returns_a_loss
from memgraph.base.compat.autograd import compiled_node
from memgraph.base.compat.distributed import bucket_bytes, collective_groups, default_store, gathered, local, wrapped
from memgraph.base.compat.dynamo import (
    autocast_state,
    compile_id,
    compiled_function_name,
    copy_graph,
    graph_break_reason,
    graph_text,
    only_tracing,
    rehome,
    through_dynamo,
    uncompiled,
)
from memgraph.base.compat.fake import (
    fake_evaluation,
    fake_mode_of,
    is_fake,
    propagating,
    really,
    same_contents,
    storage_id,
    traces_cuda,
)
from memgraph.base.compat.inductor import (
    compile_graph,
    config_fingerprint,
    inductor_cache_folder,
    inductor_config_keys,
    inner_compile,
    lowering_settings,
    mode_options,
)
from memgraph.base.compat.lowerings import lower_shards, lower_transfers, write_to_memory
from memgraph.base.compat.modules import compiled_form
from memgraph.base.compat.operators import (
    C_LINEAR,
    falls_back,
    has_side_effect,
    inductor_pure_random,
    invoke_subgraph,
    operator_names,
    triton_kernel,
)
from memgraph.base.compat.optimizers import (
    bare_step,
    foreach_by_default,
    hooks_all_steps,
    operator_mode,
    stepping_on_fakes,
)
from memgraph.base.compat.partition import (
    backward_inputs,
    donate_nothing,
    extract_forward_backward,
    must_recompute,
    must_save,
    partitioner_base,
    raise_getitems,
    stock_partition,
    tangents_are_given_away,
)
from memgraph.base.compat.profiler import (
    allocation_event_type,
    allocations,
    profiling,
    start_allocations,
    stop_allocations,
)
from memgraph.base.compat.scheduler import (
    is_written,
    lowers_backward,
    overwriters,
    recompute_ancestors,
    run_after,
    scheduler_pass_base,
)
from memgraph.base.compat.sizes import computed_size, is_size, largest, number_at, size_at, size_hint, symbol_of
from memgraph.base.compat.storages import StorageReference, first_users_output
from memgraph.base.compat.trace import trace_artifact

__all__ = [
    "C_LINEAR",
    "Captured",
    "HigherOrderOperator",
    "OpOverload",
    "StorageReference",
    "tree_leaves",
    "tree_map",
    "allocation_event_type",
    "allocations",
    "autocast_state",
    "backward_inputs",
    "bare_step",
    "bucket_bytes",
    "captured",
    "collective_groups",
    "compile_graph",
    "compile_id",
    "compiled_form",
    "compiled_function_name",
    "compiled_node",
    "compiling_again",
    "computed_size",
    "config_fingerprint",
    "copy_graph",
    "default_store",
    "donate_nothing",
    "extract_forward_backward",
    "fake_evaluation",
    "fake_mode_of",
    "falls_back",
    "first_users_output",
    "foreach_by_default",
    "gathered",
    "graph_break_reason",
    "graph_text",
    "has_side_effect",
    "hooks_all_steps",
    "inductor_cache_folder",
    "inductor_config_keys",
    "inductor_pure_random",
    "inner_compile",
    "invoke_subgraph",
    "is_fake",
    "is_size",
    "is_written",
    "largest",
    "local",
    "lower_shards",
    "lower_transfers",
    "lowering_settings",
    "lowers_backward",
    "mode_options",
    "must_recompute",
    "must_save",
    "number_at",
    "only_tracing",
    "operator_mode",
    "operator_names",
    "overwriters",
    "partitioner_base",
    "profiling",
    "propagating",
    "raise_getitems",
    "really",
    "recompute_ancestors",
    "rehome",
    "returns_a_loss",
    "run_after",
    "same_contents",
    "scheduler_pass_base",
    "size_at",
    "size_hint",
    "stepping_on_fakes",
    "start_allocations",
    "stock_partition",
    "stop_allocations",
    "storage_id",
    "symbol_of",
    "tangents_are_given_away",
    "through_dynamo",
    "trace_artifact",
    "traces_cuda",
    "triton_kernel",
    "uncompiled",
    "wrapped",
    "write_to_memory",
]
