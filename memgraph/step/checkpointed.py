"""Forwards inside of `torch.utils.checkpoint`: what they save is dropped, and the backward runs them once more.

forward by some plan: what it saves is dropped | ... | backward: the forward once more, by the same plan; its backward
reads what that has saved

Autograd hands the values that the second run saves to the backward of the first one, by their numbers alone: another
plan would save others.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Any

from memgraph.base import compat
from memgraph.base.errors import GraphError
from memgraph.step.fake_memory import tensors_in
from memgraph.step.launched import Launched
from memgraph.step.variants import Envelope, Sizes, Variant


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """The first run of a forward, whose compiled plan must not go."""

    launch: Launched
    variant: Variant
    dropped: int
    """Bytes that the plan holds until the backward, and that are dropped."""


class _Call:
    """A call of `torch.utils.checkpoint`."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        """Of its forwards, in their order."""
        self.again: Counter[Hashable] = Counter()
        """By what stands for a backward, how many of them have run once more for it."""


class Checkpointed:
    """The forwards of one run whose backward runs them once more."""

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[Any, _Call] = weakref.WeakKeyDictionary()  # by torch's frames

    def held_beside(self, around: compat.Checkpoint) -> int:
        """Bytes that the forwards of a call before the next one hold when the backward of that one begins."""
        call = self._calls.get(around.frame)
        return 0 if call is None else sum(run.dropped for run in call.runs)

    def ran(self, around: compat.Checkpoint, launch: Launched, variant: Variant, outputs: Any) -> None:
        """A forward has run for the first time: of what its plan holds no more than its outputs are left."""
        dropped = 0
        if (envelope := launch.envelope) is not None:
            storages = {compat.storage_id(tensor): tensor.untyped_storage() for tensor in tensors_in(outputs)}
            left = min(envelope.held, sum(storage.nbytes() for storage in storages.values()))
            again = max(envelope.backward, left + envelope.forward)
            launch.envelope = Envelope(envelope.forward, left, self.held_beside(around) + again)
            dropped = envelope.held - left
        self._calls.setdefault(around.frame, _Call()).runs.append(_Run(launch, variant, dropped))

    def plan_of(self, around: compat.Checkpoint, graph: Any, sizes: Sizes) -> Variant | None:
        """The plan by which the forward has run that is to run once more; None where it is the first time.

        Raises GraphError where another forward ran in its place.
        """
        call = self._calls.get(around.frame)
        if around.again is None or call is None:
            return None
        place = call.again[around.again]
        call.again[around.again] += 1
        run = call.runs[place] if place < len(call.runs) else None
        if run is None or run.launch.graph() is not graph or run.launch.entry.sizes != sizes:
            raise GraphError(
                f"{graph.name} runs once more in a backward, for torch.utils.checkpoint, and another graph ran in its "
                "place before: what that one saved this one may not, and gradients would be wrong. Compile the "
                "function that calls torch.utils.checkpoint, or leave that out: what is recomputed is part of the plan."
            )
        return run.variant
