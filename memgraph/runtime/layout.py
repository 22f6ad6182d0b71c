"""How a tensor lies in memory, and its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from memgraph.runtime import streams


@dataclass(frozen=True)
class Layout:
    """Shape, strides (elements), dtype and device of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    @classmethod
    def given(
        cls, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> Layout:
        return cls(tuple(map(int, size)), tuple(map(int, stride)), dtype, streams.exact(device))

    def or_given(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> Layout:
        """This layout, where it is the given one, else the given one."""
        if (tuple(size), tuple(stride), dtype, device) == (self.size, self.stride, self.dtype, self.device):
            return self
        return Layout.given(size, stride, dtype, device)

    @cached_property
    def elements(self) -> int:
        """Elements from the first to the last, gaps included."""
        return span(self.size, self.stride)

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the last, gaps included: what is stored."""
        return self.elements * self.dtype.itemsize

    def bytes_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The bytes of a tensor that lies so, where they lie, gaps included: uint8, one dimension.

        A copy of these keeps every bit, whatever the dtype and the order of the dimensions, and needs no memory on the
        device: packing a tensor with gaps would.
        """
        if tensor.requires_grad:
            tensor = tensor.detach()
        return tensor.as_strided((self.elements,), (1,)).view(torch.uint8)

    def holds(self, other: Layout) -> bool:
        """Whether the same bytes are the same tensor in both layouts.

        Strides of dimensions of size 1 do not count, nor do devices.
        """
        return self == other or (
            (self.size, self.dtype) == (other.size, other.dtype)
            and self.nbytes == other.nbytes
            and (
                not self.nbytes
                or all(a == b for n, a, b in zip(self.size, self.stride, other.stride, strict=True) if n > 1)
            )
        )

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first of a strided tensor to its last, gaps included."""
    if not all(size):
        return 0
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
