"""The parameters that optimizers own, in place of those that FSDP2 gathers for a launch, or DDP compiles with."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

import torch

from memgraph.base import compat

_Pair = tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]"]


class Shards:
    """What stays in this process of the parameters that one graph is launched with."""

    def __init__(self) -> None:
        self._known: dict[int, _Pair] = {}
        """By the identity of a leaf: the leaf, and what an optimizer owns for it."""
        self.gathers: bool | None = None
        """Whether there is a shard for any leaf; None until the first launch has shown that."""

    def owned(self, leaves: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The shards of leaves that were gathered, and the other leaves as they are; for fakes what DDP trains.

        All launches of a graph are taken to be like its first one: with gathered leaves or without.
        """
        if self.gathers is False or not leaves:
            return leaves
        if compat.is_fake(leaves[0]):
            return compat.wrapped()
        found = [self._shard(leaf) for leaf in leaves]
        if None in found:
            self._look(leaves)
            found = [self._shard(leaf) for leaf in leaves]
        return [leaf if shard is None else shard for leaf, shard in zip(leaves, found, strict=True)]

    def _look(self, leaves: Sequence[torch.Tensor]) -> None:
        shards = {id(gathered): shard for gathered, shard in compat.gathered()}
        self.gathers = self.gathers or any(id(leaf) in shards for leaf in leaves)
        for leaf in leaves:
            self._known[id(leaf)] = weakref.ref(leaf), weakref.ref(shards.get(id(leaf), leaf))

    def _shard(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """What is owned for a leaf; None where that is not known."""
        found = self._known.get(id(leaf))
        return found[1]() if found is not None and found[0]() is leaf else None


def sets_like(leaves: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """How many sets of parameters of the leaves' shapes the optimizers own, this one among them.

    The graph of a layer is launched once for each in a step, mostly.
    """
    wanted = Counter(map(_kind, leaves))
    owned = Counter(_kind(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    return max(1, min((owned[kind] // count for kind, count in wanted.items()), default=1))


def _kind(parameter: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return parameter.shape, parameter.dtype
