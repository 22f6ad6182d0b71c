"""Every private import from torch, in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def allocation_event_type() -> Any:
    """The tag of an allocation (or a free) among the events of `torch.profiler`'s event tree."""
    from torch._C._profiler import _EventType

    return _EventType.Allocation


def inductor_config_keys() -> frozenset[str]:
    """The names that Inductor's configuration knows, dotted for nested ones (`"triton.cudagraphs"`)."""
    from torch._inductor import list_options  # here, because Inductor takes a while to import

    return frozenset(list_options())


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


def raise_getitems(gm: Any) -> Any:
    """Move every getitem right behind the operator whose output it takes."""
    from torch._functorch.compile_utils import raise_getitems as stock

    return stock(gm)


def activation_memory_budget_is_default() -> bool:
    """Whether `torch._functorch.config.activation_memory_budget` is 1.0: below it dropout would be redrawn."""
    import torch._functorch.config as config

    return config.activation_memory_budget == 1.0


def size_hint(size: Any) -> int:
    """A size as a plain int; of a symbolic one, the value seen when the graph was captured."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise ValueError(f"the size {size} depends on data: its value is unknown before it runs")
    return int(hint)


def is_inductor_seed(target: Any) -> bool:
    """Whether a target draws the seeds from which Inductor makes random numbers."""
    from torch._inductor import inductor_prims

    return target in (inductor_prims.seeds, inductor_prims.seed)


def inductor_pure_random(target: Any) -> bool:
    """Whether a target is Inductor's counter-based generator: a pure function of a seed that was drawn before."""
    from torch._inductor import inductor_prims

    return target in (inductor_prims.lookup_seed, inductor_prims.random, inductor_prims.randint)


def has_side_effect(target: Any) -> bool:
    """Whether FX was told to keep calls of `target` that nothing reads."""
    from torch.fx.node import _side_effectful_functions

    return target in _side_effectful_functions


def same_contents(left: Any, right: Any) -> bool:
    """Whether two tensors of one shape are equal, nan too; fake ones have no contents to tell apart."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if left is right:
        return True
    if is_fake(left) or is_fake(right):
        return is_fake(left) and is_fake(right)
    with _disable_current_modes(), torch.no_grad():
        left, right = left.detach(), right.detach()
        return bool(((left == right) | ((left != left) & (right != right))).all())


def fake_mode_of(values: Any) -> Any:
    """The fake mode that the fake tensors among `values` were made in, or None."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(values)


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has a shape, but no contents."""
    from torch._subclasses import FakeTensor

    return isinstance(tensor, FakeTensor)


@contextlib.contextmanager
def propagating(mode: Any) -> Iterator[None]:
    """Ops run on fake tensors of `mode`, and leave no guards and no new symbols behind."""
    import torch

    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        stack.enter_context(mode)
        stack.enter_context(torch.no_grad())
        yield


@contextlib.contextmanager
def fake_evaluation() -> Iterator[None]:
    """Within it, tensors are fake (shape, stride, dtype, device, no bytes), and operators neither run nor cast.

    A CUDA tensor can be made in it where there is no CUDA device.
    """
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), torch._C._DisableAutocast(), torch.no_grad():
        yield


def storage_id(tensor: Any) -> int:
    """The same number for tensors that share a storage, for as long as one of them lives; fake ones too."""
    return tensor.untyped_storage()._cdata
