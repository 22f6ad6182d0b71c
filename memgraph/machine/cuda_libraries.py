"""What CUDA's libraries do to a plan: memory that they keep for good, and kernels whose memory nobody knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from memgraph.base import compat


def take_workspaces(device: torch.device) -> None:
    """Have cuBLAS take its workspaces on a CUDA device now: what is allocated from here on has them in it.

    The first product of a thread and stream takes one from torch's allocator, which is never given back: 32 MiB on
    Hopper, 8.1 MiB before (`CUBLAS_WORKSPACE_CONFIG`). A step makes products on two threads, the caller's and
    autograd's, which recomputes some that add a bias: before torch 2.13 cuBLASLt has 1 MiB of its own for those. Once
    all stand this costs a few small products.
    """
    if device.type != "cuda":
        return
    with torch.cuda.device(device), compat.really(), torch.enable_grad():
        factor = torch.ones(16, 16, device=device, requires_grad=True)
        bias = torch.ones(16, device=device)

        def in_the_backward(gradient: torch.Tensor) -> None:
            torch.addmm(bias, gradient, gradient)

        product = torch.addmm(bias, factor, factor) @ factor
        product.register_hook(in_the_backward)
        torch.autograd.grad(product.sum(), factor)


def exchanges_attention() -> bool:
    """Whether `without_cudnn_attention` takes calls from cuDNN, as the switches of attention are now."""
    switches = torch.backends.cuda
    others = switches.flash_sdp_enabled() or switches.mem_efficient_sdp_enabled()
    return torch.cuda.is_available() and switches.cudnn_sdp_enabled() and others


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """While this lasts, `scaled_dot_product_attention` is not traced to cuDNN's kernels.

    On Hopper torch 2.13 prefers them, and what scratch memory they take follows from an execution plan that only cuDNN
    on the device makes. Flash attention's is known to the byte. Where a user has switched off the other fused kernels,
    cuDNN's stay: without any the scores would be kept whole.
    """
    if not exchanges_attention():
        yield
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def fingerprint() -> str:
    """What decides about the kernels of CUDA's libraries in this process, apart from their arguments, as text."""
    switches = torch.backends.cuda
    return (
        f"attention {switches.flash_sdp_enabled()} {switches.mem_efficient_sdp_enabled()} "
        f"{switches.math_sdp_enabled()} {switches.cudnn_sdp_enabled()}"
    )
