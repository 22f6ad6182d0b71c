"""What is known of the scratch of ATen's CPU kernels before any of them runs.

A rule is exact, or it is a bound that holds whatever kernel is chosen. Exact rules follow from ATen's own source.
Bounds hold on the processors that they were measured on, x86-64 from AVX2 on; other processors have none. A bound is
enough if nothing may run (a dry run), or if a kernel is too large to be tried; otherwise the kernel is measured.
tests/facts/test_kernel_scratch_rules.py holds every rule against a measured table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from memgraph.facts.kernel_scratch import attention, convolution, products
from memgraph.facts.kernel_scratch.operands import Call, operands

KIB = 1024


@dataclasses.dataclass(frozen=True)
class Rule:
    """How much scratch the kernel of a call takes."""

    bytes: Callable[[Call], int]
    """The bytes of a call."""
    exact: bool = False
    """Whether every machine's kernel takes that much, within 1 % and 4 KiB; else the bytes are a bound."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """A bound that is linear in the bytes that a call reads and makes."""

    inputs: float = 0
    """Bytes for each byte read."""
    outputs: float = 0
    """Bytes for each byte made."""
    thread: int = 0
    """Bytes for each thread."""
    constant: int = 0
    """Bytes of every call."""

    def __call__(self, call: Call) -> int:
        operands = self.inputs * call.inputs + self.outputs * call.made
        return int(operands) + self.thread * torch.get_num_threads() + self.constant


def _nothing(call: Call) -> int:
    return 0


def _line_of_pairs(call: Call) -> int:
    """The values along `dim`, a line of them at a time, and their places in int64 (sort)."""
    value = call.named["self"]
    return value.size[call.named["dim"]] * (value.dtype.itemsize + 8) if value.size else 0


def _pairs(call: Call) -> int:
    """A copy of the values, and their places in int64 (kthvalue)."""
    value = call.named["self"]
    return value.nbytes // value.dtype.itemsize * (value.dtype.itemsize + 8)


def _masks(call: Call) -> int:
    """A mask becomes the places of its elements: once as they are found, once by dimension."""
    masks = [operand for operand in operands((call.args, call.kwargs)) if operand.dtype in (torch.bool, torch.uint8)]
    return sum(2 * 8 * len(mask.size) * mask.nbytes for mask in masks)


# Without AVX2 oneDNN convolves by columns of an image a thread, and is short by up to 65 % (measured with SSE 4.1).
_MEASURED = ("AVX2", "AVX512")
_LAPACK = 64 * KIB  # work arrays of a small matrix

_EXACT: dict[str, Callable[[Call], int]] = {
    "aten::kthvalue": _pairs,
    **dict.fromkeys(
        "aten::as_strided aten::copy_ aten::fill_ aten::zero_ aten::empty aten::empty_strided aten::cummax "
        "aten::cummin aten::cumsum aten::cumprod aten::logcumsumexp aten::_assert_async "
        "aten::linalg_lu_factor_ex aten::linalg_cholesky_ex aten::topk aten::mode aten::index_add "
        "aten::scatter aten::scatter_ aten::scatter_add aten::scatter_add_ aten::scatter_reduce "
        "aten::scatter_reduce_".split(),
        _nothing,
    ),
}

_ATTENTION: dict[str, Callable[[Call], int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention.forward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention.backward,
}

_BOUNDS: dict[str, Callable[[Call], int]] = {
    **_ATTENTION,
    "aten::convolution": convolution.forward,
    "aten::convolution_backward": convolution.backward,
    **{f"aten::{name}": products.product for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "addbmm")},
    "aten::_grouped_mm": products.grouped,
    # Hugging Face's own: one product after the other, each into its part of the result.
    "transformers::grouped_mm_fallback": products.grouped,
    "transformers::grouped_mm_fallback_backward": products.grouped,
    "aten::sort": _line_of_pairs,
    # Copies for transforms along what is not the last dimension, one after the other.
    "aten::_fft_r2c": Linear(inputs=1, outputs=1),
    "aten::_fft_c2r": Linear(inputs=2),
    "aten::_fft_c2c": Linear(inputs=1, outputs=1),
    # Copies of the matrices in column order, and LAPACK's work arrays.
    "aten::linalg_inv_ex": Linear(inputs=1.25, constant=_LAPACK),
    "aten::linalg_qr": Linear(inputs=1.5, thread=_LAPACK, constant=_LAPACK),
    "aten::linalg_householder_product": Linear(inputs=1.5, thread=_LAPACK, constant=_LAPACK),
    "aten::_linalg_svd": Linear(inputs=4, outputs=1, constant=_LAPACK),
    "aten::_linalg_eigh": Linear(inputs=3.5, constant=_LAPACK),
    "aten::linalg_eig": Linear(inputs=6, constant=_LAPACK),
    "aten::_linalg_det": Linear(inputs=1, constant=_LAPACK),
    "aten::_linalg_slogdet": Linear(inputs=1, constant=_LAPACK),
    "aten::_linalg_solve_ex": Linear(inputs=1, constant=_LAPACK),
    "aten::linalg_solve_triangular": Linear(inputs=1, outputs=1),
    "aten::triangular_solve": Linear(inputs=1),
    "aten::linalg_lu": Linear(inputs=1.25, constant=_LAPACK),
    "aten::linalg_matrix_exp": Linear(inputs=16, constant=_LAPACK),
    "aten::cholesky_solve": Linear(inputs=1.25, constant=_LAPACK),
    "aten::cholesky_inverse": Linear(inputs=1, constant=4 * KIB),
    "aten::median": Linear(inputs=1, outputs=4, constant=4 * KIB),
    "aten::nanmedian": Linear(inputs=1, outputs=4, constant=4 * KIB),
    "aten::multinomial": Linear(inputs=3, constant=16 * KIB),
    "aten::histc": Linear(outputs=2, thread=4 * KIB, constant=4 * KIB),
    "aten::index_reduce": Linear(inputs=1, outputs=2),
    "aten::index_put": _masks,
    "aten::index_put_": _masks,
    "aten::_unsafe_index_put": _masks,
    "aten::_embedding_bag": Linear(inputs=1, outputs=1, constant=4 * KIB),
    "aten::_embedding_bag_forward_only": Linear(inputs=1, outputs=1, constant=4 * KIB),
    "aten::_embedding_bag_dense_backward": Linear(inputs=2, outputs=1),
    "aten::embedding_dense_backward": Linear(inputs=1),
    "aten::_cdist_forward": Linear(inputs=3),
    "aten::_cdist_backward": Linear(inputs=3, outputs=1),
    "aten::_pdist_forward": Linear(inputs=1),
    "aten::upsample_bicubic2d": Linear(inputs=1, outputs=0.25, constant=64 * KIB),
    "aten::upsample_bicubic2d_backward": Linear(inputs=1, outputs=1, constant=64 * KIB),
    "aten::_upsample_bicubic2d_aa": Linear(inputs=2, outputs=1, constant=64 * KIB),
    "aten::grid_sampler_2d": Linear(inputs=1, outputs=1),
    "aten::grid_sampler_2d_backward": Linear(inputs=1, outputs=1),
    "aten::mkldnn_rnn_layer": Linear(inputs=3, outputs=1, constant=64 * KIB),
    "aten::mkldnn_rnn_layer_backward": Linear(inputs=3, outputs=2, constant=64 * KIB),
    "aten::native_batch_norm": Linear(outputs=1, constant=4 * KIB),
    "aten::native_batch_norm_backward": Linear(outputs=1, constant=4 * KIB),
    "aten::max_pool3d_with_indices": Linear(inputs=1),
    "aten::max_pool3d_with_indices_backward": Linear(inputs=1),
    "aten::_adaptive_avg_pool2d_backward": Linear(inputs=1),
    "aten::_adaptive_avg_pool3d": Linear(inputs=1),
    "aten::_adaptive_avg_pool3d_backward": Linear(inputs=1),
    "aten::adaptive_max_pool2d_backward": Linear(inputs=1),
    "aten::masked_scatter": Linear(inputs=1),
    "aten::_weight_norm_interface_backward": Linear(inputs=1, outputs=1),
}

RULES: dict[str, Rule] = {
    **{name: Rule(rule, exact=True) for name, rule in _EXACT.items()},
    **{name: Rule(rule) for name, rule in _BOUNDS.items()},
}


def rule_of(call: Call) -> Rule | None:
    """The rule for a call, None where there is none, or only a bound that was not measured on such a processor."""
    if call.name in products.PLAIN and products.plain(call):
        return Rule(_nothing, exact=True)
    if call.name in _ATTENTION and attention.plain(call):
        return Rule(_ATTENTION[call.name], exact=True)
    rule = RULES.get(call.name)
    bounded = rule is not None and (rule.exact or torch.backends.cpu.get_cpu_capability() in _MEASURED)
    return rule if bounded else None
