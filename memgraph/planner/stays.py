"""Where saved values stand: by operator of the forward and of the backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stay:
    """At which operators a saved value stands, without those at which the moments count it already."""

    value: int
    bytes: float
    """In units of the program."""
    born: int
    """The first place of the forward; from there it stands to the forward's end."""
    waits: int
    """The last of the first places of the backward, at which it stands unless it is away; -1 for none."""
    again: int
    """The first place of the backward at which it stands even if it was away; behind the last for none."""
    last: int
    """The last such place."""
    beside: frozenset[int]
    """Places of the backward at which the moments count it already."""


class Stays(tuple[Stay, ...]):
    """The stays of one graph: a linear program asks for those at some hundred places."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        self._born, self._waits, self._again, self._last = (
            np.array([getattr(stay, name) for stay in self], dtype=np.int64)
            for name in ("born", "waits", "again", "last")
        )

    def born_by(self, place: int) -> list[Stay]:
        """Those that stand at a place of the forward."""
        return [self[n] for n in np.flatnonzero(self._born <= place).tolist()]

    def at(self, place: int) -> Iterator[Stay]:
        """Those that stand at a place of the backward beyond what the moments count."""
        wait = place <= self._waits
        for n in np.flatnonzero(wait | ((self._again <= place) & (place <= self._last))).tolist():
            stay = self[n]
            if place <= stay.waits or place not in stay.beside:
                yield stay
