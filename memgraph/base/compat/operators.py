"""What torch knows of an operator."""

from __future__ import annotations

from typing import Any

import torch

C_LINEAR = torch._C._nn.linear  # what Dynamo's graphs call for `torch.nn.functional.linear`


def inductor_pure_random(target: Any) -> bool:
    """Whether a target is Inductor's counter-based generator: a pure function of a seed that was drawn before."""
    from torch._inductor import inductor_prims

    return target in (inductor_prims.lookup_seed, inductor_prims.random, inductor_prims.randint)


def looks_up_seed(target: Any) -> bool:
    """Whether a target is Inductor's choice of one of a graph's seeds, by number."""
    from torch._inductor import inductor_prims

    return target is inductor_prims.lookup_seed


def has_side_effect(target: Any) -> bool:
    """Whether FX was told to keep calls of `target` that nothing reads."""
    from torch.fx.node import _side_effectful_functions

    return target in _side_effectful_functions


def triton_kernels_of(compiled: Any) -> dict[str, Any]:
    """Inductor's own Triton kernels of a compiled graph, by name; those that a user wrote are not among them.

    compiled: what Inductor's compiler of one graph returns.
    """
    waiting: list[Any] = [getattr(compiled, "current_callable", None)]
    seen: set[int] = set()
    while waiting:  # the wrapper's function, or one around it that aligns its inputs
        function = waiting.pop()
        function = getattr(function, "__func__", function)
        if not callable(function) or id(function) in seen:
            continue
        seen.add(id(function))
        names = getattr(function, "__globals__", {})
        if "AsyncCompile" in names and "call" in names:
            return {name: value for name, value in names.items() if _is_inductors(value)}
        waiting += map(_content, getattr(function, "__closure__", None) or ())
    return {}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been put in yet
        return None


def _is_inductors(value: Any) -> bool:
    if not (hasattr(value, "launchers") and hasattr(value, "heuristic_type")):
        return False
    return value.heuristic_type.name != "USER_AUTOTUNE"


def is_tuned_when_run(kernel: Any) -> bool:
    """Whether a Triton kernel of Inductor's measures its variants when it first runs."""
    return len(kernel.launchers) != 1 or bool(kernel.inductor_meta.get("coordinate_descent_tuning"))


def triton_kernel(index: int) -> str:
    """The name of the function of a Triton kernel that is called in a graph, by its index there."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return _kernel_name(kernel_side_table.get_kernel(index))


def _kernel_name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):  # an autotuned kernel holds a compiled one, which holds the function
        kernel = kernel.fn
    return kernel.__name__


def operator_names() -> set[str]:
    """All operators that are registered in this process, `namespace::name`, Triton kernels of graphs among them."""
    import torch
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch._ops import _higher_order_ops

    named = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    kernels = {f"triton::{_kernel_name(kernel)}" for kernel in kernel_side_table.id_to_kernel.values()}
    return named | kernels | {f"higher_order::{name}" for name in _higher_order_ops}


def invoke_subgraph() -> Any:
    """The operator that calls a body: a graph that Inductor compiles once for all calls of it."""
    from torch._higher_order_ops.invoke_subgraph import invoke_subgraph as stock

    return stock


def falls_back(target: Any) -> bool:
    """Whether Inductor calls an operator's own kernel on the CPU: it has no lowering for it, or one that calls it."""
    from torch._inductor import lowering

    return target in lowering.fallbacks or target not in lowering.lowerings
