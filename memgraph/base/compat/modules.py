"""Modules that were compiled."""

from __future__ import annotations

from typing import Any

import torch


def compiled_form(module: torch.nn.Module) -> Any:
    """What a module was compiled to: itself where `torch.compile` has returned it, the function that runs in place of
    its forward where it was compiled in place, None where it is not compiled.

    A module of which only submodules are compiled is not compiled.
    """
    from torch._dynamo import OptimizedModule

    return module if isinstance(module, OptimizedModule) else module._compiled_call_impl
