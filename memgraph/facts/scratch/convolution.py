"""Convolutions on the CPU: the most that any kernel of theirs may take.

Which kernel runs is oneDNN's choice, by shapes, strides, dtype and instruction set, so there is no formula for the
exact bytes. Whatever it chooses copies operands and results at most once each into a format of its own, and those
formats fill up the channels of a group to whole vectors. Without oneDNN (float64; float16 without instructions for
it) ATen unfolds the whole batch into columns: as many bytes as the input has, times the kernel's volume.
"""

from __future__ import annotations

import math

import torch

from memgraph.facts.scratch.operands import Call, Operand

_LANES = 16  # of float32 in the widest vector
_SMALL_IMAGE = 20480  # elements, by ATen/native/Convolution.cpp, which asks for kernels of 3 x 3 at most too
_WORK = 512 * 1024  # of a thread: tiles of a kernel's own


def forward(call: Call) -> int:
    value, weight = call.named["input"], call.named["weight"]
    groups, turned = call.named["groups"], call.named["transposed"]
    result = _result(call.outputs)
    copies = _filled(value, 1, groups) + _filled(result, 1, groups) + 2 * _weight(weight, groups)
    return max(copies + _work(), _columns(result if turned else value, value if turned else result, weight))


def backward(call: Call) -> int:
    gradient, value, weight = (call.named[name] for name in ("grad_output", "input", "weight"))
    groups, turned = call.named["groups"], call.named["transposed"]
    # Input and its gradient, the gradient that comes; each thread sums up a gradient of the weight.
    copies = 2 * _filled(value, 1, groups) + _filled(gradient, 1, groups)
    copies += (2 + torch.get_num_threads()) * _weight(weight, groups)
    wide, narrow = (gradient, value) if turned else (value, gradient)
    return max(copies + _work(), _columns(wide, narrow, weight))


def _result(outputs: object) -> Operand:
    return outputs if isinstance(outputs, Operand) else outputs[0]


def _filled(tensor: Operand, channels: int, groups: int) -> int:
    """Bytes with the channels of each group filled up to whole vectors, in float32 where it is narrower."""
    inner = tensor.size[channels] // groups
    whole = groups * _whole(inner) if inner > 1 else _whole(groups)  # one channel a group: groups lie side by side
    return math.prod(tensor.size) // max(1, tensor.size[channels]) * whole * max(4, tensor.dtype.itemsize)


def _weight(weight: Operand, groups: int) -> int:
    first, second, *kernel = weight.size
    sides = (first // groups, second) if first % groups == 0 else (first, second)
    inner = groups * _whole(sides[0]) * _whole(sides[1]) if max(sides) > 1 else _whole(groups)
    return inner * math.prod(kernel) * max(4, weight.dtype.itemsize)


def _whole(channels: int) -> int:
    return -(-channels // _LANES) * _LANES


def _columns(unfolded: Operand, positions: Operand, weight: Operand) -> int:
    """Bytes of the batch of `unfolded` as columns, one for each of the other side's positions, and copies.

    float32 goes to oneDNN but for one small image.
    """
    kernel, places = math.prod(weight.size[2:]), math.prod(positions.size[2:])
    columns = unfolded.size[0] * unfolded.size[1] * kernel * places * unfolded.dtype.itemsize
    if unfolded.dtype == torch.float32 and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        columns = min(columns, _SMALL_IMAGE * 9 * unfolded.dtype.itemsize)
    return columns + unfolded.nbytes + positions.nbytes + 2 * weight.nbytes


def _work() -> int:
    return torch.get_num_threads() * _WORK
