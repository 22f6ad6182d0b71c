"""Equal layers as one: what a model repeats is shown once, with the numbers of the layers."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

from memgraph.facts.actions import Action, Tile
from memgraph.facts.regions import element_of
from memgraph.planner.decisions import Decision

NEARLY = 0.1  # of a layer's bytes may differ where layers are shown as one
Signature = collections.Counter[tuple[str, type[Action], int]]


@dataclasses.dataclass(frozen=True)
class ModulePath:
    """A module path, split at the number of its layer: `model.layers`, `3`, `.mlp`."""

    stem: str
    """All of the path where it has no number."""

    number: str = ""
    rest: str = ""

    @classmethod
    def of(cls, module: str) -> ModulePath:
        element = element_of(module)
        if not element:
            return cls(module)
        stem, _, number = element.rpartition(".")
        return cls(stem, number, module[len(element) :])


@dataclasses.dataclass
class Layers:
    """Layers that are shown as one."""

    stem: str
    """Their module path without the number."""

    signature: Signature
    """Of the first of them: part of the layer, action and bytes of each value."""

    numbers: list[str] = dataclasses.field(default_factory=list)

    members: list[tuple[str, Decision]] = dataclasses.field(default_factory=list)
    """The decisions of all of them, each with its part of the layer."""

    equal: bool = True
    """Whether all are as the first."""

    @property
    def label(self) -> str:
        return numbered(self.stem, self.numbers)

    def parts(self) -> dict[str, list[Decision]]:
        """The decisions by the submodule of the layer, "" for the layer itself."""
        found: dict[str, list[Decision]] = {}
        for rest, decision in self.members:
            found.setdefault(rest.split(".")[1] if rest else "", []).append(decision)
        return found

    def takes(self, signature: Signature, nearly: float) -> bool:
        """Whether a layer with this signature differs from the first one in at most the share `nearly` of its bytes."""
        differing = (self.signature - signature) + (signature - self.signature)
        return differing.total() == 0 or _bytes(differing) <= nearly * _bytes(self.signature)


def fold(decisions: Iterable[Decision], nearly: float = NEARLY) -> list[Layers]:
    """The decisions on values, by sets of layers that are equal or nearly so, in the order of the graph.

    nearly: the share of a layer's bytes that may differ.
    """
    layers: dict[tuple[str, str], list[tuple[str, Decision]]] = {}
    for decision in decisions:
        if not isinstance(decision.action, Tile):
            path = ModulePath.of(decision.module)
            layers.setdefault((path.stem, path.number), []).append((path.rest, decision))
    groups: list[Layers] = []
    for (stem, number), members in layers.items():
        signature: Signature = collections.Counter((rest, type(d.action), d.bytes) for rest, d in members)
        group = next((group for group in groups if group.stem == stem and group.takes(signature, nearly)), None)
        if group is None:
            groups.append(group := Layers(stem, signature))
        group.numbers.append(number)
        group.members += members
        group.equal &= group.signature == signature
    return groups


def numbered(stem: str, numbers: Iterable[str], most: int | None = None) -> str:
    """(`model.layers`, [0, 1, 2, 5]) -> `model.layers.0..2,5`.

    most: runs of numbers that are listed; of more than these, the first and the last number, as of one run.
    """
    runs: list[list[int]] = []
    for number in sorted({int(number) for number in numbers if number}):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if most is not None and len(runs) > most:
        runs = [[runs[0][0], runs[-1][1]]]
    listed = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs)
    return ".".join(part for part in (stem, listed) if part)


def _bytes(signature: Signature) -> int:
    return sum(size * times for (_, _, size), times in signature.items())
