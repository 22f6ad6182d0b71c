"""One launch of a compiled graph: how it found the world, what it was predicted to take, what was recorded of it."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch

from memgraph.base import compat
from memgraph.step.fake_memory import tensors_in
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.recording import Mark, Moment
from memgraph.step.returned import Dropped, Returned
from memgraph.step.variants import Entry, Envelope, Variant


@dataclasses.dataclass(eq=False)
class Launched:
    """One forward of a round, and its backward. It keeps no graph and no tensor alive."""

    graph: weakref.ref[Any]
    """The StepGraph."""
    entry: Entry
    round: list[Launched]
    """The round that it is in."""
    open_in_forward: tuple[int, ...]
    """The launches that were open when it began, by their numbers in the round."""
    name: str = ""
    """Of its graph, as a user calls it."""
    inputs: Any = None
    """What it is launched with (`outside.Inputs`); None where nothing but its backward comes after it."""
    device: torch.device = torch.device("cpu")
    budget: int = 0
    """Bytes that it may reach."""
    reserve: int = 0
    """Bytes of the budget that plans leave free."""
    forecasts: tuple[OptimizerForecast, ...] = ()
    """What the optimizers of the graph's parameters were known to take when it began."""
    variant: weakref.ref[Variant] | None = None
    """The plan that it runs; None until that is chosen."""
    envelope: Envelope | None = None
    """What its plan takes with its sizes; None where that is not known."""
    larger: bool = False
    """Whether the envelope is that of larger sizes, which stand for its own: it is to take no more."""
    open_in_backward: tuple[int, ...] = ()
    """The others that were open when its backward began."""
    marks: dict[Moment, Mark] = dataclasses.field(default_factory=dict)
    """What was recorded of it."""
    outputs: tuple[compat.StorageReference, ...] = ()
    """The storages of its outputs, where it is recorded."""
    dropped: int = 0
    """Bytes of these that were free when its backward began."""
    counted: int = 0
    """Bytes of these that its plan takes for free then."""
    given: int = 0
    """Bytes of the tangents that autograd gives away to its backward, where that is recorded. They stand when it
    begins, and its plan counts them as well."""
    returned: Returned | None = None
    """Its outputs, where somebody asks who holds them."""
    given_up: Dropped | None = None
    """The outputs that the caller did not hold any more when its backward began; None where that is not known."""
    node: weakref.ref[Any] | None = None
    """Autograd's node: without it no backward can come."""
    begun: bool = False
    """Whether its backward has begun."""
    closed: bool = False
    cut: bool = False
    """Whether a launch after it did not run after all: that its backward has not begun says nothing then."""
    watched: compat.Handles | None = None
    """The hooks that tell when its backward has ended, where it is recorded."""

    @property
    def open(self) -> bool:
        """Whether its saved values are allocated."""
        return not self.closed and (self.node is None or self.node() is not None)

    @property
    def recorded(self) -> bool:
        """Whether all of it was, as far as it has come."""
        return not self.cut and Moment.RETURN in self.marks and (Moment.END in self.marks or not self.begun)

    @property
    def predicted_above(self) -> int | None:
        """Bytes above the level of its entry that its plan says; of the forward alone where no backward has begun."""
        if self.envelope is None:
            return None
        return self.envelope.peak if self.begun else self.envelope.forward

    @property
    def measured_above(self) -> int | None:
        """What it reached by itself, in bytes above the level of its entry; None where that is not known.

        What others hold meanwhile is no part of it. Of two peaks one may be unseen on CUDA: then the other is higher.
        """
        begins, returns = self.marks.get(Moment.FORWARD), self.marks.get(Moment.RETURN)
        if begins is None or returns is None:
            return None
        found = [returns.peak - begins.level] if returns.seen else []
        if self.begun:
            backward, end = self.marks.get(Moment.BACKWARD), self.marks.get(Moment.END)
            if backward is None or end is None:
                return None
            left = returns.level - begins.level - self.dropped
            found += [left + self.given + end.peak - backward.level] if end.seen else []
        return max(found, default=None)

    @property
    def before_backward(self) -> int | None:
        """The level at which its backward began, without what it held itself and its tangents; None where no plan says
        what others hold.

        From the recording, if there is one; else without gradients that were made since the forward.
        """
        if self.envelope is None or not self.begun:
            return None
        if (backward := self.marks.get(Moment.BACKWARD)) is not None:
            held = self.envelope.held - self.dropped + min(self.counted, self.dropped)
            return backward.level - held - self.given
        others = (self.round[number].envelope for number in self.open_in_backward)
        return self.entry.level - self.entry.others + sum(other.held for other in others if other is not None)

    @property
    def predicted_peak(self) -> int | None:
        """Bytes that its plan says, with all that is allocated; None where that is not known."""
        if self.envelope is None:
            return None
        forward, before = self.entry.level + self.envelope.forward, self.before_backward
        return forward if before is None else max(forward, before + self.envelope.backward)

    @property
    def measured_peak(self) -> int | None:
        """Bytes that it reached, with all that is allocated; None where that is not known."""
        ends = [mark for moment, mark in self.marks.items() if moment in (Moment.RETURN, Moment.END) and mark.seen]
        return None if self.measured_above is None else max(mark.peak for mark in ends)

    def close(self) -> None:
        """Its backward is over, or none is to come."""
        self.closed = True
        if self.watched is not None:
            self.watched.remove()

    def watch(self, outputs: Any) -> None:
        """Note the memory of its outputs, without keeping it."""
        found = {compat.storage_id(tensor): tensor for tensor in tensors_in(outputs)}
        self.outputs = tuple(map(compat.StorageReference, found.values()))

    def backward_begins(self, others: tuple[int, ...], given: int) -> None:
        """others: the launches that are open besides, by their numbers in the round.  given: bytes of the tangents that
        its backward can free."""
        self.open_in_backward, self.given, self.begun = others, given, True
        if self.outputs:
            self.dropped = sum(storage.bytes for storage in self.outputs if not storage.holders())
