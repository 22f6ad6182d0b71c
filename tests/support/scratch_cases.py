"""Calls of ATen's CPU kernels whose scratch is measured: shapes from real models, layouts as Inductor gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memgraph.base import compat
from memgraph.facts.kernel_scratch.operands import Call, Operand

aten = torch.ops.aten
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
I64 = torch.int64


def dense(*size: int, dtype: torch.dtype = F32, order: tuple[int, ...] | None = None) -> Operand:
    """An operand without gaps; `order` lists the dimensions, the fastest last."""
    stride, step = [0] * len(size), 1
    for dim in reversed(order or range(len(size))):
        stride[dim], step = step, step * size[dim]
    return Operand(size, tuple(stride), dtype)


def turned(*size: int, dtype: torch.dtype = F32) -> Operand:
    """An operand with the last two dimensions swapped in memory."""
    dims = range(len(size))
    return dense(*size, dtype=dtype, order=(*dims[:-2], dims[-1], dims[-2]))


def call(op: Any, *args: Any, **kwargs: Any) -> Call:
    """The call with its results, found on fake tensors."""

    def fake(value: Any) -> Any:
        if isinstance(value, Operand):
            return torch.empty_strided(value.size, value.stride, dtype=value.dtype)
        return [fake(item) for item in value] if isinstance(value, list | tuple) else value

    with compat.fake_evaluation():
        outputs = op(*map(fake, args), **{name: fake(value) for name, value in kwargs.items()})
        return Call.of(op, args, kwargs, outputs)


# input, weight, stride, padding, groups, transposed, dtype, dilation
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ((8, 16, 32, 32), (32, 16, 3, 3), 1, 1),
    ((8, 16, 32, 32), (32, 16, 1, 1), 1, 0),
    ((2, 64, 56, 56), (256, 64, 1, 1), 2, 0),
    ((8, 16, 32, 32), (32, 16, 3, 3), 1, 2, 1, False, F32, 2),
    ((4, 8, 32, 32), (8, 1, 7, 7), 1, 3, 8),
    ((4, 8, 32, 32), (8, 1, 3, 3), 1, 1, 8),
    ((4, 96, 56, 56), (96, 1, 7, 7), 1, 3, 96),
    ((4, 100, 28, 28), (100, 1, 3, 3), 1, 1, 100),
    ((2, 32, 56, 56), (32, 1, 5, 5), 2, 2, 32),
    ((2, 24, 28, 28), (48, 1, 3, 3), 1, 1, 24),
    ((2, 3, 64, 64), (64, 3, 7, 7), 2, 3),
    ((2, 3, 32, 32), (16, 3, 3, 3), 1, 1),
    ((2, 1, 28, 28), (6, 1, 5, 5), 1, 2),
    ((2, 128, 28, 28), (128, 4, 3, 3), 1, 1, 32),
    ((2, 64, 28, 28), (64, 32, 3, 3), 1, 1, 2),
    ((2, 3, 224, 224), (192, 3, 16, 16), 16, 0),
    ((2, 3, 64, 64), (32, 3, 4, 4), 4, 0),
    ((1, 512, 7, 7), (512, 512, 3, 3), 1, 1),
    ((4, 32, 32, 32), (64, 32, 3, 3), 2, 1),
    ((2, 20, 15, 17), (30, 20, 3, 5), 1, 1),
    ((2, 32, 16, 16), (32, 64, 2, 2), 2, 0, 1, True),
    ((2, 32, 16, 16), (32, 64, 4, 4), 2, 1, 1, True),
    ((2, 32, 16, 16), (32, 8, 3, 3), 2, 1, 4, True),
    ((4, 64, 200), (128, 64, 3), 1, 1),
    ((1, 64, 400), (64, 4, 129), 1, 64, 16),
    ((2, 128, 64), (128, 1, 4), 1, 3, 128),
    ((1, 32, 100), (32, 16, 8), 4, 2, 1, True),
    ((2, 8, 8, 16, 16), (16, 8, 3, 3, 3), 1, 1),
    ((1, 3, 8, 64, 64), (64, 3, 2, 16, 16), (2, 16, 16), 0),
    ((1, 16, 4, 16, 16), (16, 1, 3, 3, 3), 1, 1, 16),
    ((1, 8, 4, 8, 8), (8, 16, 2, 2, 2), 2, 0, 1, True),
    *(((8, 16, 32, 32), (32, 16, 3, 3), 1, 1, 1, False, dtype) for dtype in (BF16, F16, F64)),
    *(((4, 96, 28, 28), (96, 1, 7, 7), 1, 3, 96, False, dtype) for dtype in (BF16, F16, F64)),
    *(((2, 3, 64, 64), (64, 3, 7, 7), 2, 3, 1, False, dtype) for dtype in (BF16, F16)),
    *(((2, 64, 28, 28), (64, 32, 3, 3), 1, 1, 2, False, dtype) for dtype in (BF16, F64)),
    *(((2, 32, 16, 16), (32, 64, 4, 4), 2, 1, 1, True, dtype) for dtype in (BF16, F16, F64)),
    *(((4, 64, 200), (128, 64, 3), 1, 1, 1, False, dtype) for dtype in (BF16, F16, F64)),
    *(((1, 8, 4, 16, 16), (16, 8, 3, 3, 3), 1, 1, 1, False, dtype) for dtype in (BF16, F64)),
    ((8, 16, 32, 32), (32, 16, 3, 3), 1, 2, 1, False, F64, 2),
]


def _convolutions() -> Iterator[Call]:
    for value, weight, stride, padding, *rest in CONVOLUTIONS:
        groups, transposed, dtype, dilation = (*rest, *(1, False, F32, 1)[len(rest) :])
        dims = len(value) - 2
        every = [[n] * dims if isinstance(n, int) else list(n) for n in (stride, padding, dilation)]
        tail = (*every, transposed, [0] * dims, groups)
        for last in (False, True) if dims > 1 else (False,):
            x, w = dense(*value, dtype=dtype), dense(*weight, dtype=dtype)
            x, w = (x.channels_last(), w.channels_last()) if last else (x, w)
            bias = dense(weight[1] * groups if transposed else weight[0], dtype=dtype)
            forward = call(aten.convolution.default, x, w, bias, *tail)
            yield forward
            gradient = forward.outputs.channels_last() if last else dense(*forward.outputs.size, dtype=dtype)
            for wanted in ([True, True, True], [False, True, True]):
                yield call(aten.convolution_backward.default, gradient, x, w, list(bias.size), *tail, wanted)
        if dims > 1:  # gradients and inputs contiguous or not, as the joint graph and the forward's layout have them
            mixed = dense(*value, dtype=dtype).channels_last()
            plain = dense(*forward.outputs.size, dtype=dtype)
            weights = dense(*weight, dtype=dtype)
            yield call(
                aten.convolution_backward.default, plain, mixed, weights, list(bias.size), *tail, [True, True, True]
            )


def _products() -> Iterator[Call]:
    for dtype in (F32, BF16, F16, F64):
        for m, k, n in ((64, 64, 64), (512, 256, 512), (512, 4096, 512), (127, 333, 777), (64, 8192, 64)):
            if dtype in (F16, F64) and k > 1000:
                continue
            for left in (dense, turned):
                for right in (dense, turned):
                    a, b = left(m, k, dtype=dtype), right(k, n, dtype=dtype)
                    yield call(aten.mm.default, a, b)
            yield call(aten.addmm.default, dense(n, dtype=dtype), dense(m, k, dtype=dtype), turned(k, n, dtype=dtype))
        for batch, m, k, n in ((32, 64, 32, 16), (8, 512, 64, 512), (4, 256, 1024, 256)):
            for left in (dense, turned):
                a = left(batch, m, k, dtype=dtype)
                yield call(aten.bmm.default, a, dense(batch, k, n, dtype=dtype))
                yield call(aten.bmm.default, a, turned(batch, k, n, dtype=dtype))
            yield call(
                aten.baddbmm.default,
                dense(batch, m, n, dtype=dtype),
                dense(batch, m, k, dtype=dtype),
                dense(batch, k, n, dtype=dtype),
            )
        yield call(aten.mv.default, dense(512, 256, dtype=dtype), dense(256, dtype=dtype))
        yield call(aten.addmv.default, dense(512, dtype=dtype), dense(512, 256, dtype=dtype), dense(256, dtype=dtype))
    rows, ends = dense(512, 256, dtype=BF16), dense(4, dtype=torch.int32)
    yield call(aten._grouped_mm.default, rows, dense(4, 256, 128, dtype=BF16), ends)
    yield call(aten._grouped_mm.default, rows, turned(4, 256, 128, dtype=BF16), ends)
    yield call(aten._grouped_mm.default, turned(256, 512, dtype=BF16), dense(512, 128, dtype=BF16), ends)


def _transforms() -> Iterator[Call]:
    for size in ((8, 512, 128), (4, 64, 30, 50)):
        real = dense(*size)
        half = dense(*size[:-1], size[-1] // 2 + 1, dtype=torch.complex64)
        whole = dense(*size, dtype=torch.complex64)
        last = len(size) - 1
        for dims in ([last], [last - 1], [last - 1, last], [0, last - 1, last], list(range(last + 1))):
            if last in dims:
                yield call(aten._fft_r2c.default, real, dims, 0, True)
                yield call(aten._fft_c2r.default, half, dims, 0, size[-1])
            yield call(aten._fft_c2c.default, whole, dims, 0, True)
            yield call(aten._fft_c2c.default, turned(*size, dtype=torch.complex64), dims, 0, False)
        yield call(aten._fft_r2c.default, turned(*size), [last], 0, True)
        yield call(aten._fft_r2c.default, real, [0], 0, False)


def _matrices() -> Iterator[Call]:
    for dtype in (F32, F64, torch.complex64):
        for square in (dense(256, 256, dtype=dtype), dense(4, 64, 64, dtype=dtype), turned(256, 256, dtype=dtype)):
            for name in (
                "linalg_inv_ex linalg_qr _linalg_det _linalg_slogdet linalg_lu_factor_ex linalg_lu linalg_cholesky_ex "
                "linalg_eig linalg_matrix_exp cholesky_inverse _linalg_svd _linalg_eigh"
            ).split():
                yield call(getattr(aten, name).default, square)
            for name in ("_linalg_solve_ex", "triangular_solve", "cholesky_solve"):
                yield call(getattr(aten, name).default, square, square)
            yield call(aten.linalg_solve_triangular.default, square, square, upper=True)
            yield call(aten._linalg_svd.default, square, True)
            yield call(aten._linalg_svd.default, square, False, False)
        for tall in (dense(300, 40, dtype=dtype), dense(40, 300, dtype=dtype), dense(2, 100, 60, dtype=dtype)):
            for name in ("linalg_qr", "linalg_lu", "_linalg_svd"):
                yield call(getattr(aten, name).default, tall)
            yield call(aten._linalg_svd.default, tall, True)
        yield call(aten.linalg_householder_product.default, dense(300, 40, dtype=dtype), dense(40, dtype=dtype))


def _picks() -> Iterator[Call]:
    value, index = dense(256, 1024), dense(256, dtype=I64)
    for dim in (1, 0):
        for x in (value, turned(256, 1024), dense(256, 1024, dtype=BF16)):
            yield call(aten.sort.stable, x, stable=True, dim=dim)
            yield call(aten.sort.default, x, dim)
            yield call(aten.topk.default, x, 5, dim)
            yield call(aten.kthvalue.default, x, 3, dim)
            for name in ("median.dim", "nanmedian.dim", "mode.default"):
                packet, overload = name.split(".")
                yield call(getattr(getattr(aten, packet), overload), x, dim)
            for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
                yield call(getattr(aten, name).default, x, dim)
    yield call(aten.sort.stable, dense(40, 10, 300, dtype=I64), stable=True, dim=1)
    yield call(aten.median.default, value)
    yield call(aten.nanmedian.default, value)
    yield call(aten.multinomial.default, value, 2, True)
    yield call(aten.multinomial.default, value, 2, False)
    yield call(aten.multinomial.default, dense(8, 50000), 1, False)
    yield call(aten.histc.default, value, 100)
    for target, source in ((dense(100, 1024), value), (dense(1000, 64), dense(256, 64))):
        for reduce in ("mean", "prod", "amax", "amin"):
            yield call(aten.index_reduce.default, target, 0, index, source, reduce)
        yield call(aten.index_add.default, target, 0, index, source)
        yield call(aten.index_put_.default, target, [index], source, True)
        yield call(aten.index_put_.default, target, [index], source, False)
        wide = Operand(source.size, (1, 0), I64)
        yield call(aten.scatter_add_.default, target, 0, wide, source)
        for reduce in ("sum", "amax", "mean", "prod"):
            yield call(aten.scatter_reduce_.two, target, 0, wide, source, reduce)
    yield call(aten.index_reduce.default, dense(256, 100), 1, dense(1024, dtype=I64), value, "mean")
    table, ids, offsets = dense(1000, 64), dense(2048, dtype=I64), dense(256, dtype=I64)
    for mode in (0, 1, 2):
        yield call(aten._embedding_bag.default, table, ids, offsets, False, mode)
        yield call(aten._embedding_bag_forward_only.default, table, ids, offsets, False, mode)
    yield call(aten.embedding_dense_backward.default, dense(2048, 64), ids, 1000, -1, False)
    yield call(aten.masked_scatter.default, value, dense(256, 1024, dtype=torch.bool), value)


def _images() -> Iterator[Call]:
    for last in (False, True):

        def image(*size: int, dtype: torch.dtype = F32, last: bool = last) -> Operand:
            return dense(*size, dtype=dtype).channels_last() if last else dense(*size, dtype=dtype)

        x, large = image(2, 16, 64, 64), image(2, 16, 128, 128)
        for name in ("upsample_bicubic2d", "_upsample_bicubic2d_aa"):
            yield call(getattr(aten, name).default, x, [128, 128], False)
        yield call(aten.upsample_bicubic2d_backward.default, large, [128, 128], [2, 16, 64, 64], False)
        flow, seen = dense(2, 32, 32, 2), image(2, 16, 32, 32)
        yield call(aten.grid_sampler_2d.default, x, flow, 0, 0, False)
        yield call(aten.grid_sampler_2d_backward.default, seen, x, flow, 0, 0, False, [True, True])
        yield call(aten._adaptive_avg_pool2d_backward.default, image(2, 16, 7, 7), x)
        yield call(aten.adaptive_max_pool2d_backward.default, image(2, 16, 7, 7), x, image(2, 16, 7, 7, dtype=I64))
        video, small = image(2, 8, 8, 32, 32), image(2, 8, 4, 16, 16)
        yield call(aten.max_pool3d_with_indices.default, video, [2, 2, 2])
        yield call(
            aten.max_pool3d_with_indices_backward.default,
            *(small, video, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, image(2, 8, 4, 16, 16, dtype=I64)),
        )
        yield call(aten._adaptive_avg_pool3d.default, video, [2, 2, 2])
        yield call(aten._adaptive_avg_pool3d_backward.default, image(2, 8, 2, 2, 2), video)
        w = dense(16)
        yield call(aten.native_batch_norm.default, x, w, w, w, w, True, 0.1, 1e-5)
        yield call(aten.native_batch_norm_backward.default, x, x, w, w, w, w, w, True, 1e-5, [True, True, True])


def _attention() -> Iterator[Call]:
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for batch, heads, tokens, features in ((1, 8, 512, 64), (1, 2, 2048, 64), (2, 4, 100, 32), (1, 2, 1000, 80)):
        for dtype in (F32, BF16):
            q = dense(batch, heads, tokens, features, dtype=dtype, order=(0, 2, 1, 3))
            for causal in (False, True):
                yield call(forward, q, q, q, 0.0, causal)
            sums = dense(batch, heads, tokens, order=(0, 2, 1))
            yield call(backward, q, q, q, q, q, sums, 0.0, True)
            plain = dense(batch, heads, tokens, features, dtype=dtype)
            yield call(backward, plain, q, q, q, q, sums, 0.0, False)


def _rest() -> Iterator[Call]:
    for rows in (20, 512):
        for p in (1.0, 2.0):
            yield call(aten._cdist_forward.default, dense(rows, 64), dense(rows, 64), p, None)
            yield call(
                aten._cdist_backward.default, dense(rows, rows), dense(rows, 64), dense(rows, 64), p, dense(rows, rows)
            )
    yield call(aten._pdist_forward.default, dense(64, 16), 2.0)
    yield call(aten.addbmm.default, dense(64, 16), dense(32, 64, 32), dense(32, 32, 16))
    yield call(
        aten._weight_norm_interface_backward.default,
        *(dense(256, 1024), dense(256, 1024), dense(256, 1), dense(256, 1), 0),
    )
    for tokens, batch, width, hidden in ((32, 16, 64, 128), (10, 4, 20, 30)):
        weights = [
            dense(4 * hidden, width),
            dense(4 * hidden, hidden),
            dense(4 * hidden),
            dense(4 * hidden),
        ]
        x, h = dense(tokens, batch, width), dense(1, batch, hidden)
        for train in (True, False):
            yield call(
                aten.mkldnn_rnn_layer.default,
                *(x, *weights, h, h, False, [], 2, hidden, 1, True, False, False, train),
            )


GROUPS = (_convolutions, _products, _transforms, _matrices, _picks, _images, _attention, _rest)


def cases() -> Iterator[Call]:
    for group in GROUPS:
        yield from group()
