"""Optimizers, and what it takes to let one step on fake tensors."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from memgraph.base.compat.fake import really


def operator_mode() -> type:
    """The base class of a mode that sees the operators of its block as they are called, those on fake tensors too."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def bare_step(kind: type) -> Callable[[Any], object]:
    """The `step` of a class of optimizers, without torch's wrapper, which runs hooks."""
    import torch

    wrapping: Any = torch.optim.Optimizer.profile_hook_step
    wrapper = wrapping(lambda optimizer: None).__code__
    step: Any = kind.step  # type: ignore[attr-defined]
    while getattr(step, "__code__", None) is wrapper:
        step = step.__wrapped__
    return step


def hooks_all_steps() -> bool:
    """Whether a hook of somebody else is registered for the steps of all optimizers."""
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return any(not str(getattr(hook, "__module__", "")).startswith("memgraph.") for hook in hooks)


def foreach_by_default(step: Any, parameters: list[Any], group: dict[str, Any]) -> bool:
    """Whether `step` updates a group's parameters all at once where the group says neither `foreach` nor `fused`.

    torch asks for the exact types and the device of the parameters, so fake ones would get another answer. It asks so
    in the modules that import the function; Adafactor's does not.
    """
    from torch.optim.optimizer import _default_to_fused_or_foreach

    if not _asks_for_foreach(step, group):
        return False
    default: Any = _default_to_fused_or_foreach
    return bool(default(parameters, group.get("differentiable", False), use_fused=False)[1])


def foreach_on(step: Any, group: dict[str, Any], device: str) -> bool:
    """As `foreach_by_default`, for parameters that shall be on a kind of device ("cuda") and are not there yet."""
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    says = group.get("foreach") is not None or group.get("fused") is not None or group.get("differentiable", False)
    return not says and _asks_for_foreach(step, group) and device in _get_foreach_kernels_supported_devices()


def _asks_for_foreach(step: Any, group: dict[str, Any]) -> bool:
    from torch.optim.optimizer import _default_to_fused_or_foreach

    default: Any = _default_to_fused_or_foreach
    module = sys.modules.get(step.__module__)
    tensor_rate = hasattr(group.get("lr"), "shape") and not group.get("capturable", False)
    return vars(module).get(default.__name__) == default and not tensor_rate


@contextlib.contextmanager
def stepping_on_fakes() -> Iterator[None]:
    """Within it operators make fake tensors, as an optimizer's step would make real ones outside of a compilation.

    Modes, autocast and inference mode of the caller are off, gradients on; compiled functions run uncompiled; the
    states of random generators are restored. Asking a fake tensor for its address raises: a kernel that torch does not
    call would write there.
    """
    import numpy
    import torch
    import torch._functorch.config as functorch_config
    from torch._subclasses import FakeTensorMode

    drawn, drawn_by_numpy = random.getstate(), numpy.random.get_state()
    device = torch.get_default_device()
    with contextlib.ExitStack() as stack:
        stack.callback(numpy.random.set_state, drawn_by_numpy)
        stack.callback(random.setstate, drawn)
        stack.enter_context(really())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_as_if_not_compiling())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            mode = FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(mode)
        if device.type != "cpu":  # Dynamo takes torch.set_default_device's mode off while it compiles
            stack.enter_context(device)
        yield


@contextlib.contextmanager
def _as_if_not_compiling() -> Iterator[None]:
    """Within it `torch.compiler.is_compiling()` is False.

    Optimizers ask for it, and then compute otherwise than in eager mode. From 2.13 it is True while a backend runs.
    """
    import torch

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
