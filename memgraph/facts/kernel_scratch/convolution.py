"""Convolutions on the CPU: the most that any kernel of theirs may take.

Which kernel runs is oneDNN's choice, by shapes, strides, dtype and instruction set, so there is no formula for the
exact bytes. Whatever it chooses copies operands and results at most once each into a format of its own, and those
formats fill up the channels of a group to whole vectors. Without oneDNN (float64; float16 without instructions for
it) ATen unfolds the whole batch, a group at a time, into columns: the input's bytes times the kernel's volume.
"""

from __future__ import annotations

import math

import torch

from memgraph.base.sizes import round_up
from memgraph.facts.kernel_scratch.operands import Call, Operand

_LANES = 16  # of float32 in the widest vector
_SMALL_IMAGE = 20480  # elements, by ATen/native/Convolution.cpp, which asks for kernels of 3 x 3 at most too
_WORK = 512 * 1024  # of a thread: tiles of a kernel's own


def forward(call: Call) -> int:
    """Bytes that `aten::convolution` takes at most."""
    value, weight = call.named["input"], call.named["weight"]
    groups, turned = call.named["groups"], call.named["transposed"]
    result = _result(call.outputs)
    copies = _filled(value, 1, groups) + _filled(result, 1, groups) + 2 * _weight(weight, groups)
    return max(copies + _work(), _columns(result if turned else value, value if turned else result, weight, groups))


def backward(call: Call) -> int:
    """Bytes that `aten::convolution_backward` takes at most."""
    gradient, value, weight = (call.named[name] for name in ("grad_output", "input", "weight"))
    groups, turned = call.named["groups"], call.named["transposed"]
    # Input and its gradient, the gradient that comes; each thread sums up a gradient of the weight.
    copies = 2 * _filled(value, 1, groups) + _filled(gradient, 1, groups)
    copies += (2 + torch.get_num_threads()) * _weight(weight, groups)
    wide, narrow = (gradient, value) if turned else (value, gradient)
    return max(copies + _work(), _columns(wide, narrow, weight, groups))


def _result(outputs: Operand | tuple[Operand, ...]) -> Operand:
    return outputs if isinstance(outputs, Operand) else outputs[0]


def _filled(tensor: Operand, channels: int, groups: int) -> int:
    """Bytes with the channels of each group filled up to whole vectors."""
    others = math.prod(tensor.size) // max(1, tensor.size[channels])
    return others * _sides(groups, tensor.dtype, tensor.size[channels] // groups)


def _weight(weight: Operand, groups: int) -> int:
    """The same of a weight, on both of its sides; one side is that of a single group."""
    first, second, *kernel = weight.size
    own = first // groups if first % groups == 0 else first
    return math.prod(kernel) * _sides(groups, weight.dtype, own, second)


def _sides(groups: int, dtype: torch.dtype, *channels: int) -> int:
    """Bytes of all groups at one place.

    What is narrower than float32 may be made float32. Groups of one channel lie side by side, as if one group's
    channels; where there is no such kernel (bfloat16), each is filled up by itself.
    """
    apart = groups * math.prod(map(_whole, channels)) * dtype.itemsize
    if max(channels) > 1:
        return apart * max(1, 4 // dtype.itemsize)
    return _whole(groups) * dtype.itemsize if dtype.itemsize >= 4 else apart


def _whole(channels: int) -> int:
    return round_up(channels, _LANES)


def _columns(unfolded: Operand, positions: Operand, weight: Operand, groups: int) -> int:
    """Bytes of the batch of `unfolded` as columns, one for each of the other side's positions, and copies.

    Groups are convolved one after the other, their results put together in the end. float32 goes to oneDNN but for one
    small image.
    """
    kernel, places = math.prod(weight.size[2:]), math.prod(positions.size[2:])
    columns = unfolded.size[0] * unfolded.size[1] * kernel * places * unfolded.dtype.itemsize // groups
    if unfolded.dtype == torch.float32 and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        columns = min(columns, _SMALL_IMAGE * 9 * unfolded.dtype.itemsize)
    return columns + 2 * (unfolded.nbytes + positions.nbytes + weight.nbytes)


def _work() -> int:
    return torch.get_num_threads() * _WORK
