"""The workspace that a product takes from torch's allocator on CUDA, for cuBLAS or cuBLASLt, while it runs.

Up to torch 2.14 a thread's first product takes one and keeps it: it is no scratch, and stands in the baseline
(machine/cuda_libraries.py). From 2.15 each product takes one and gives it back. How large it is depends on the library,
and which of them computes a product depends on the type of its factors, on what is added and on the version of torch.
So torch is asked: a product of the same kind runs, whose factors are small. Where there is no card, an H100's is taken.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from memgraph.base import compat
from memgraph.facts.kernel_scratch import trial
from memgraph.facts.kernel_scratch.operands import Call, Operand

NAMES = tuple(f"aten::{name}" for name in "mm addmm bmm baddbmm _addmm_activation _scaled_mm".split())
_SMALL = 64  # rows and columns of a trial: enough for the products that want their factors aligned
# Of a Hopper (torch 2.15, CUDA 13.2).
_CUBLAS = 32 * 1024**2
_CUBLASLT = 1024**2

_found: dict[str, int] = {}  # by card, settings and call; a figure never changes, so any thread may add one


def workspace(call: Call) -> int:
    """Bytes that a product holds beyond its result."""
    if compat.workspaces_are_kept():
        return 0
    if not torch.cuda.is_available():
        return _on_an_h100(call)
    small = _small(call)
    key = f"{torch.cuda.get_device_name()} {torch.backends.cuda.preferred_blas_library()} {_sizes()} {small}"
    if key not in _found:
        try:
            _found[key] = trial.measure(small, "cuda")
        except trial.NotTried:
            return max(_sizes())
    return _found[key]


def _sizes() -> tuple[int, int]:
    """Bytes of a workspace of cuBLAS and of cuBLASLt, as the environment or the user set them."""
    return torch.backends.cuda.cublas_workspace_size(), torch.backends.cuda.cublaslt_workspace_size()


def _small(call: Call) -> Call:
    """The same product with fewer rows and columns."""
    keywords = {name: _shrunk(value) for name, value in call.kwargs.items()}
    return dataclasses.replace(call, args=_shrunk(call.args), kwargs=keywords, outputs=_shrunk(call.outputs))


def _shrunk(value: Any) -> Any:
    """A tensor of at most _SMALL in each dimension, which lie in the same order; other arguments as they are."""
    if isinstance(value, tuple):
        return tuple(map(_shrunk, value))
    if not isinstance(value, Operand):
        return value
    size = tuple(min(length, _SMALL) for length in value.size)
    order = sorted((dim for dim in range(len(size)) if value.stride[dim]), key=lambda dim: value.stride[dim])
    stride = [0] * len(size)  # what is read again and again stays so
    step = 1 if min((value.stride[dim] for dim in order if size[dim] > 1), default=1) == 1 else 2
    for dim in order:
        stride[dim], step = step, step * size[dim]
    return Operand(size, tuple(stride), value.dtype)


def _on_an_h100(call: Call) -> int:
    """cuBLASLt adds a bias of one dimension, or scales; all others, as far as is known here, are cuBLAS'."""
    if call.name in ("aten::_scaled_mm", "aten::_addmm_activation"):
        return _CUBLASLT
    if call.name != "aten::addmm":
        return _CUBLAS
    added = call.named["self"]
    lengths = [length for factor in (call.named["mat1"], call.named["mat2"]) for length in factor.size]
    biased = len(added.size) == 1 and added.dense((0,)) and call.named["beta"] == 1 and min(lengths) > 1
    return _CUBLASLT if biased else _CUBLAS
