"""How many bytes a candidate leaves free under a bound, step by step: to guess what may be saved beside what it saves.

    forward    computed . . last read ======== end          a value that the backward computes again stands in between
    backward   begin ========= computed again . . .         as well if it is saved instead (=)

It is a guess: a value that is saved changes what is written, and what else is computed again. A sweep tells what a
guess is worth.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate


class Room:
    """The bytes that are free at each step while values are given theirs."""

    def __init__(self, facts: JointFacts, base: Candidate, bound: int) -> None:
        """bound: bytes above the baseline."""
        self.values = facts.values
        self.forward = bound - np.array(base.forward.usage)
        self.backward = bound - base.carried - np.array(base.backward.usage)
        self._sweep = base.forward
        self._computed = {v: slot for slot, v in enumerate(base.schedule.forward.values)}
        program = base.schedule.backward
        self._again: dict[int, int] = {}
        for slot, v in enumerate(program.values[program.inputs :], program.inputs):
            self._again.setdefault(v, slot)

    def take(self, unit: Iterable[int], most: float) -> int | None:
        """Give all values of a unit their room; returns their bytes. None, and nothing is given, if there is none.

        most: the bytes that they may take together.
        """
        before = self.forward.copy(), self.backward.copy()
        taken = 0
        for v in unit:
            size = self.values[v].bytes
            taken += size
            ahead, behind = self.forward[self._free(v) :], self.backward[: self._again[v]]
            if taken > most or min(ahead.min(initial=size), behind.min(initial=size)) < size:
                self.forward, self.backward = before
                return None
            ahead -= size
            behind -= size
        return taken

    def _free(self, v: int) -> int:
        """The first slot of the forward at which a recomputed value is gone; behind the last if it is not computed."""
        slot = self._computed.get(v, len(self.forward))
        if slot == len(self.forward):
            return slot
        return self._sweep.deaths.get(self._sweep.storage_of[slot], slot) + 1
