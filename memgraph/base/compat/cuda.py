"""What torch takes from its allocator for CUDA's libraries."""

from __future__ import annotations

import os


def workspaces_are_kept() -> bool:
    """Whether a workspace of cuBLAS stays allocated once a product took it: each thread has one for each stream.

    From 2.15 a product takes one and gives it back, unless TORCH_CUBLAS_WORKSPACE_CACHE is 1 (pytorch#194311).
    """
    import torch

    return torch.__version__ < (2, 15) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
