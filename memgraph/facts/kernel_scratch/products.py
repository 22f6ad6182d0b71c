"""Matrix products on the CPU.

MKL's float32 and float64 products take nothing of ATen's memory where their factors lie densely. bfloat16 and float16
are oneDNN's: every thread packs blocks of its factors. Measured under AVX-512, bytes a thread: 230,528 for
[512, 256] x [256, 512] with the first transposed, 869,504 at a depth of 4,096. With AMX: 590,848 for
[127, 333] x [333, 777] by one thread, which packs the whole of the second factor; 935,040 for float16 at a depth of
1,024. A second factor of more than 777 columns was not measured with AMX.
"""

from __future__ import annotations

import torch

from memgraph.facts.kernel_scratch.operands import Call, Operand, operands

PLAIN = frozenset(
    "aten::mm aten::addmm aten::bmm aten::baddbmm transformers::grouped_mm_fallback "
    "transformers::grouped_mm_fallback_backward".split()
)

_BLOCK = 512  # rows of the packed blocks of both factors; the block's float32 sums take 256 KiB more


def plain(call: Call) -> bool:
    """Whether a product is one of MKL's, without copies."""
    factors = _factors(call)
    return (
        all(factor.dtype in (torch.float32, torch.float64) for factor in factors)
        and all(map(_dense, factors))
        and torch.backends.mkl.is_available()
        and torch.get_float32_matmul_precision() == "highest"
    )


def product(call: Call) -> int:
    """A bound: packed blocks of every thread and copies of what does not lie densely."""
    first = _factors(call)[0]
    depth = first.size[-1]
    packed = 256 * 1024 + _BLOCK * depth * first.dtype.itemsize
    packed = min(packed, 128 * 1024 + 2 * (call.inputs + call.made))  # it packs no more than there is
    copies = sum(tensor.nbytes for tensor in operands((call.args, call.kwargs)) if not _dense(tensor))
    return torch.get_num_threads() * packed + copies


def grouped(call: Call) -> int:
    """A bound: the groups run one after the other, each a product."""
    return product(call) + 4 * call.made


def _factors(call: Call) -> list[Operand]:
    """The two that are multiplied: the last matrices among the positional arguments."""
    found = [operand for operand in call.args if isinstance(operand, Operand)]
    return [operand for operand in found if len(operand.size) > 1 or len(found) == 2][-2:]


def _dense(tensor: Operand) -> bool:
    """Whether BLAS takes the matrices as they lie: one of the last two dimensions has stride 1, none overlaps."""
    if len(tensor.size) < 2:
        return True
    (*_, rows, columns), (*_, down, across) = tensor.size, tensor.stride
    return (across == 1 or columns == 1) and down >= columns or (down == 1 or rows == 1) and across >= rows
