"""Where AOTAutograd cuts a joint graph in two."""

from __future__ import annotations

from typing import Any


def partitioner_base() -> type:
    """The abstract class that Inductor's `custom_partitioner_fn` must be an instance of."""
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    return CustomPartitionerFn


def stock_partition(joint: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Inductor's own min-cut split of a joint graph (torch/_functorch/partitioners.py).

    It rewrites `joint` in place (dead code, common subexpressions) and returns (forward, backward).
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)


def extract_forward_backward(
    joint: Any, saved: list[Any], saved_symbols: list[Any], *, num_fwd_outputs: int, static_inputs: list[Any]
) -> tuple[Any, Any]:
    """Cut a joint graph at the saved nodes; whatever else the backward needs, it computes again."""
    from torch._functorch.partitioners import _extract_fwd_bwd_modules
    from torch.utils._ordered_set import OrderedSet

    return _extract_fwd_bwd_modules(
        joint,
        saved,
        saved_sym_nodes=saved_symbols,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_nodes=OrderedSet(static_inputs),
    )


def prefers_channels_last(forward: Any) -> bool:
    """Whether Inductor computes the 2-d convolutions of a forward channels last."""
    from torch._inductor.graph import GraphLowering

    return bool(GraphLowering.decide_layout_opt(forward, is_inference=False))


def depthwise_backward_copies() -> bool:
    """Whether the backward of a depthwise 2-d convolution on the CPU reads a copy of its image.

    So it is on 2.13; 2.11 and 2.15 leave it as it lies (measured).
    """
    import torch

    return (2, 13) <= torch.__version__ < (2, 15)


def backward_inputs(joint: Any) -> list[Any]:
    """The inputs of a joint graph that only its backward gets, in the backward's order: tangents, seeds, states."""
    from torch._functorch.partitioners import _is_backward_state, _is_bwd_seed_offset, _is_tangent

    inputs = joint.graph.find_nodes(op="placeholder")
    return [node for kind in (_is_tangent, _is_bwd_seed_offset, _is_backward_state) for node in inputs if kind(node)]


def raise_getitems(gm: Any) -> Any:
    """Move every getitem right behind the operator whose output it takes."""
    from torch._functorch.compile_utils import raise_getitems as stock

    return stock(gm)


def must_save() -> Any:
    """The tag in `node.meta["recompute"]` that keeps Inductor's partitioner from computing a value again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE


def must_recompute() -> Any:
    """The tag that makes Inductor's partitioner compute a value again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_RECOMPUTE


def tangents_are_given_away() -> bool:
    """Whether a compiled backward holds the only reference to its tangents, and so can free them.

    On 2.11 the engine holds them until the backward returns (measured). Unnecessary from 2.13, which boxes them
    (pytorch#177837).
    """
    import torch

    return hasattr(torch.autograd.Function, "boxed_grads_call")


def donate_nothing() -> None:
    """Tell AOTAutograd, while it compiles, that the backward leaves its saved values as they are.

    2.11 to 2.15: switched off by configuration alone, it leaves the list at None, which its check at run time takes for
    a donation (`bw_donated_idxs != []` in torch/_functorch/_aot_autograd/runtime_wrappers.py).
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
