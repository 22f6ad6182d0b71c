"""What CUDA's libraries do to a plan: memory that they keep for good, and kernels that they choose."""

from __future__ import annotations

import os

import torch

from memgraph.base import compat

_WORKSPACES = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")


def take_workspaces(device: torch.device) -> None:
    """Have cuBLAS take its workspaces on a CUDA device now: what is allocated from here on has them in it.

    Up to torch 2.14 the first product of a thread and stream takes one from torch's allocator, which is never given
    back: 32 MiB on Hopper, 8.1 MiB before (`CUBLAS_WORKSPACE_CONFIG`). Where each product gives its own back there is
    nothing to take (facts/kernel_scratch/cuda_products.py). A step makes products on two threads, the caller's and
    autograd's, which recomputes some that add a bias: before torch 2.13 cuBLASLt has 1 MiB of its own for those. Once
    all stand this costs a few small products.
    """
    if device.type != "cuda" or not compat.workspaces_are_kept():
        return
    with torch.cuda.device(device), compat.really(), torch.enable_grad():
        factor = torch.ones(16, 16, device=device, requires_grad=True)
        bias = torch.ones(16, device=device)

        def in_the_backward(gradient: torch.Tensor) -> None:
            torch.addmm(bias, gradient, gradient)

        product = torch.addmm(bias, factor, factor) @ factor
        product.register_hook(in_the_backward)
        torch.autograd.grad(product.sum(), factor)


def fingerprint() -> str:
    """What decides about the kernels of CUDA's libraries in this process, apart from their arguments, as text."""
    switches = torch.backends.cuda
    return (
        f"attention {switches.flash_sdp_enabled()} {switches.mem_efficient_sdp_enabled()} "
        f"{switches.math_sdp_enabled()} {switches.cudnn_sdp_enabled()} "
        f"workspaces {compat.workspaces_are_kept()} {' '.join(map(_environment, _WORKSPACES))} {_set_by_calls()}"
    )


def _set_by_calls() -> str:
    """The library that multiplies and the sizes of workspaces, which calls may set, once a card is in use."""
    if compat.workspaces_are_kept() or not torch.cuda.is_initialized():
        return ""
    switches = torch.backends.cuda
    sizes = switches.cublas_workspace_size(), switches.cublaslt_workspace_size()
    return f"{switches.preferred_blas_library()} {sizes}"


def _environment(name: str) -> str:
    return os.environ.get(name, "")
