"""What runs outside of the graphs, expected where a function is launched with inputs that no round has had yet.

A loss that runs eagerly between the forward and the backward of a graph grows with the batch. What it took with other
inputs the recorded rounds know, also where Dynamo has compiled the function anew for the new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from memgraph.base import compat
from memgraph.step.joint import Launch
from memgraph.step.problem import Known
from memgraph.step.variants import Entry


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a graph is launched with."""

    function: str
    """What Dynamo compiled the graph from."""
    parameters: tuple[tuple[int, ...], ...]
    """Their shapes: other ones are of another model, whatever its class."""
    bytes: int
    """Of all but the parameters."""

    @classmethod
    def of(cls, name: str, args: Iterable[Any]) -> Inputs:
        """name: of the graph; those of all graphs of a function begin alike, "loss 0/0", "loss 0/1"."""
        tensors = [given for given in args if isinstance(given, torch.Tensor)]
        parameters = [given for given in tensors if isinstance(given, torch.nn.Parameter)]
        others = sum(compat.size_hint(given.nbytes) for given in tensors if not isinstance(given, torch.nn.Parameter))
        shapes = tuple(tuple(map(compat.size_hint, parameter.shape)) for parameter in parameters)
        return cls(name.rpartition("/")[0] or name, shapes, others)

    @property
    def model(self) -> tuple[Hashable, ...]:
        """What is the same with inputs of any size."""
        return self.function, self.parameters


class Outside:
    """What rounds have shown, by the model and the bytes of a launch's inputs."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[int, int]] = {}

    def learn(self, known: Known, launches: Sequence[Launch]) -> None:
        """Remember what others have reached while each launch was open.

        known, launches: of a round that was recorded; no plans are needed of these.
        """
        for number, (launched, _) in enumerate(known):
            if (inputs := launched.inputs) is not None:
                seen = self._seen.setdefault(inputs.model, {})
                seen[inputs.bytes] = max(seen.get(inputs.bytes, 0), _between(number, known, launches))

    def beside(self, entry: Entry, inputs: Inputs, room: int | None = None) -> Entry:
        """The entry of a launch with what others are expected to reach before its backward.

        room: bytes that it may reach: where others alone pass it no plan can help, and nothing is expected (what they
        reach is warned of).
        """
        between = self.expected(inputs)
        if room is not None and entry.lasting + between > room:
            between = 0
        return dataclasses.replace(entry, between=between) if between else entry

    def expected(self, inputs: Inputs) -> int:
        """Bytes that others reach between a forward and its backward, above the level of its entry and what it holds.

        Of inputs within others that are known as those have shown; of larger ones in proportion to their bytes. 0 where
        nothing is known.
        """
        seen = self._seen.get(inputs.model, {})
        within = [size for size in seen if size >= inputs.bytes]
        if within:
            return seen[min(within)]
        return max((reached * inputs.bytes // max(1, size) for size, reached in seen.items()), default=0)


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
