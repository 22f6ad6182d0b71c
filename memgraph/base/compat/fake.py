"""Fake tensors, and torch's modes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any


def same_contents(left: Any, right: Any) -> bool:
    """Whether two tensors of one shape are equal; nan equals nan, and fake ones, without contents, equal each other."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if left is right:
        return True
    if is_fake(left) or is_fake(right):
        return is_fake(left) and is_fake(right)
    with _disable_current_modes(), torch.no_grad():
        left, right = left.detach(), right.detach()
        return bool(((left == right) | ((left != left) & (right != right))).all())


def logger_of_fake_tensors() -> logging.Logger:
    """Where torch logs a second stack for an operator that fails on fake tensors, whose error is raised anyway."""
    import torch._subclasses.fake_tensor as of_fakes

    return logging.getLogger(of_fakes.__name__)


def fake_mode_of(values: Any) -> Any:
    """The fake mode that the fake tensors among `values` were made in, or None.

    Not that of the tracing context, where a tensor tells its own: the values of Dynamo's graph were made in one mode,
    and Dynamo gives its backend another (2.11 to 2.15).
    """
    from torch._guards import detect_fake_mode

    made_in = (getattr(value, "fake_mode", None) for value in values)
    return next((mode for mode in made_in if mode is not None), None) or detect_fake_mode(values)


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has a shape, but no contents.

    2.11, 2.13: each is a FakeTensor. 2.15 can keep them in C++ as well (torch/_subclasses/fake_tensor.py), and tells.
    """
    return _fake_test()(tensor)


@functools.cache
def _fake_test() -> Callable[[Any], bool]:
    """What tells a fake tensor. Found once: launches ask, and an import within a function takes a microsecond."""
    from torch._subclasses import fake_tensor

    if hasattr(fake_tensor, "is_fake_tensor"):
        return fake_tensor.is_fake_tensor
    return lambda tensor: isinstance(tensor, fake_tensor.FakeTensor)


def runs_on_fakes() -> bool:
    """Whether what is called now is to run on fake tensors, of a mode or of what torch traces.

    Each launch asks: where neither a mode is on nor torch traces, `fake_mode_of` would find nothing, and take longer.
    """
    import torch

    if torch._guards.TracingContext.try_get() is None and not torch._C._len_torch_dispatch_stack():
        return False
    return fake_mode_of(()) is not None


@contextlib.contextmanager
def propagating(mode: Any) -> Iterator[None]:
    """Within it operators run on fake tensors of `mode`, without autograd, and leave no guards and no new symbols."""
    import torch

    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        stack.enter_context(mode)
        stack.enter_context(torch.no_grad())
        yield


@contextlib.contextmanager
def really() -> Iterator[None]:
    """Within it operators run on real tensors, outside of all modes and of autocast, even while torch traces."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C._DisableAutocast():
        yield


def fake_mode() -> Any:
    """A mode in which tensors are fake. It reads the whole stack of its maker, which takes milliseconds."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode()


@contextlib.contextmanager
def fake_evaluation(mode: Any = None) -> Iterator[None]:
    """Within it, tensors are fake (a shape, a dtype, no bytes), and operators neither run nor cast.

    A CUDA tensor can be made in it where there is no CUDA device.  mode: of `fake_mode`, for who enters it often.
    """
    import torch

    with mode or fake_mode(), torch._C._DisableAutocast(), torch.no_grad():
        yield


def plain_fakes() -> Any:
    """A mode in which tensors are fake, and sizes are numbers."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def traces_cuda() -> bool:
    """Whether autograd can trace a graph for a GPU: a build with CUDA needs a device for it (seen on 2.11).

    A build without CUDA traces it as the CPU's.
    """
    import torch

    return not torch.backends.cuda.is_built() or torch.cuda.is_available()


def storage_id(tensor: Any) -> int:
    """The same number for tensors that share a storage, for as long as one of them lives; fake ones too."""
    return tensor.untyped_storage()._cdata


def is_written_into(tensor: Any) -> bool:
    """Whether an operator has written into a tensor, or into a view of it, since it was made; for fake ones too."""
    return tensor._version > 0
