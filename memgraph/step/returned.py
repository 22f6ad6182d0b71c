"""What a caller does with the outputs of a forward: whether it still holds them when the backward begins.

A language model returns its logits beside the loss, and most loops drop them at once: gigabytes that a plan need not
hold until the backward has run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from memgraph.base import compat

Dropped = tuple[int, ...]
"""Positions among the outputs of Dynamo's graph."""


@dataclasses.dataclass(frozen=True)
class _Output:
    position: int
    storage: compat.StorageReference
    holders: int
    """How many held the storage when the forward returned: the outputs in it, and what the backward saved."""
    outputs: int
    """How many outputs lie in this storage."""


class Returned:
    """The outputs of one launch. It keeps none of them alive."""

    def __init__(self, outputs: Sequence[Any], smallest: int) -> None:
        """smallest: bytes of an output that is worth a look."""
        large = {n: out for n, out in enumerate(outputs) if type(out) is torch.Tensor and out.nbytes >= smallest}
        places = [compat.storage_id(output) for output in large.values()]
        self._outputs = []
        for (position, output), place in zip(large.items(), places, strict=True):
            storage = compat.StorageReference(output)
            self._outputs.append(_Output(position, storage, storage.holders(), places.count(place)))

    def dropped(self) -> Dropped:
        """The outputs whose storages the caller does not hold any more."""
        return tuple(each.position for each in self._outputs if each.storage.holders() <= each.holders - each.outputs)
