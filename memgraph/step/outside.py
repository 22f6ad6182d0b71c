"""What runs outside of the graphs, expected where a function is launched with inputs that no round has had yet.

A loss that runs eagerly between the forward and the backward of a graph grows with the batch. What it took with other
inputs the recorded rounds know, also where Dynamo has compiled the function anew for the new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from memgraph.base import compat
from memgraph.step.joint import Launch
from memgraph.step.problem import Known
from memgraph.step.variants import Entry


class Outside:
    """What rounds have shown, by the function that a graph was compiled from, and the bytes of a launch's inputs."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, int]] = {}

    def learn(self, known: Known, launches: Sequence[Launch]) -> None:
        """Remember what others have reached while each launch was open.

        known, launches: of a round that was recorded; no plans are needed of these.
        """
        for number, (launched, _) in enumerate(known):
            if launched.inputs is not None:
                seen = self._seen.setdefault(_function(launched.name), {})
                seen[launched.inputs] = max(seen.get(launched.inputs, 0), _between(number, known, launches))

    def beside(self, entry: Entry, name: str, inputs: int, room: int | None = None) -> Entry:
        """The entry of a launch with what others are expected to reach before its backward.

        name: of its graph.  inputs: bytes.  room: bytes that it may reach: where others alone pass it no plan can help,
        and nothing is expected (what they reach is warned of).
        """
        between = self.expected(name, inputs)
        if room is not None and entry.lasting + between > room:
            between = 0
        return dataclasses.replace(entry, between=between) if between else entry

    def expected(self, name: str, inputs: int) -> int:
        """Bytes that others reach between a forward and its backward, above the level of its entry and what it holds.

        Of inputs within others that are known as those have shown; of larger ones in proportion to their bytes. 0 where
        nothing is known.
        """
        seen = self._seen.get(_function(name), {})
        within = [size for size in seen if size >= inputs]
        if within:
            return seen[min(within)]
        return max((reached * inputs // max(1, size) for size, reached in seen.items()), default=0)


def bytes_of_inputs(args: Iterable[Any]) -> int:
    """Bytes of what a graph is launched with, parameters apart."""
    tensors = [given for given in args if isinstance(given, torch.Tensor) and not isinstance(given, torch.nn.Parameter)]
    return sum(compat.size_hint(tensor.nbytes) for tensor in tensors)


def _function(name: str) -> str:
    """What Dynamo compiled a graph from: the names of all graphs of it begin so, "loss 0/0", "loss 0/1"."""
    return name.rpartition("/")[0] or name


def _between(number: int, known: Known, launches: Sequence[Launch]) -> int:
    """What others reach while one launch is open, above the level at which it began, whatever the graphs hold.

    Gradients that are made meanwhile are no part of it: where others stand already, they were counted twice.
    """
    reached = [
        launch.before_forward + launch.outside_forward for launch in launches if number in launch.open_in_forward
    ]
    reached += [
        launch.before_backward + launch.outside_backward - _gradients_before(other, known)
        for other, launch in enumerate(launches)
        if other == number or number in launch.open_in_backward
    ]
    return max(0, max(reached) - launches[number].before_forward)


def _gradients_before(number: int, known: Known) -> int:
    """Bytes of the gradients that the backwards before that of one launch have made."""
    over = {number, *known[number][0].open_in_backward}
    return sum(launched.entry.own for n, (launched, _) in enumerate(known) if launched.begun and n not in over)
