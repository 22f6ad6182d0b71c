"""How many bytes a candidate leaves free under a bound, step by step: to guess what may be saved beside what it saves.

    forward    computed . . last read ======== end          a value that the backward computes again stands in between
    backward   begin ========= computed again . . .         as well if it is saved instead (=)

What was saved only to compute it again is then not saved any more, and stands no longer than the forward reads it.

It is a guess: a value that is saved changes what is written, and when others are computed again. A sweep tells what a
guess is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
        forward, self._program = base.schedule.forward, base.schedule.backward
        self._computed = {v: slot for slot, v in enumerate(forward.values)}
        self._storage = base.forward.storage_of
        self._last = {self._storage[read]: slot for slot, reads in enumerate(forward.reads) for read in reads}
        """By storage of the forward, the last slot that needs it there."""
        self._last.update(base.forward.deaths)
        self._again: dict[int, int] = {}
        """By value, the slot of the backward that computes it again first."""
        inputs = self._program.inputs
        for slot, v in enumerate(self._program.values[inputs:], inputs):
            self._again.setdefault(v, slot)
        self._readers: list[list[int]] = [[] for _ in self._program.values]
        """By slot of the backward, those that read it."""
        for slot, reads in enumerate(self._program.reads):
            for read in reads:
                self._readers[read].append(slot)
        self._freed: set[int] = set()

    def take(self, unit: Iterable[int], most: float) -> int | None:
        """Give all values of a unit their room; returns their bytes. None, and nothing is given, if there is none.

        most: the bytes that they may take together.
        """
        before = self.forward.copy(), self.backward.copy(), set(self._freed)
        taken = 0
        for v in unit:
            taken += self.values[v].bytes
            for saved in self._needless(v):
                self._freed.add(saved)
                self._stands(saved, v, -self.values[saved].bytes)
            self._stands(v, v, self.values[v].bytes)
            if taken > most or min(self.forward.min(initial=0), self.backward.min(initial=0)) < 0:
                self.forward, self.backward, self._freed = before
                return None
        return taken

    def _stands(self, saved: int, v: int, size: int) -> None:
        """So many more bytes of a saved value stand until another one would be computed again."""
        slot = self._computed.get(saved)
        if slot is not None:  # what the forward does not compute is made at its end, if it is saved
            self.forward[self._last.get(self._storage[slot], slot) + 1 :] -= size
        self.backward[: self._again[v]] -= size

    def _needless(self, v: int) -> Iterator[int]:
        """The saved values that nothing needs but the recomputation of a value."""
        program, first = self._program, self._again[v]
        gone, pending = {first}, [first]
        while pending:
            for read in program.reads[pending.pop()]:
                if read in gone or read in program.outputs or not gone.issuperset(self._readers[read]):
                    continue
                gone.add(read)
                saved = program.values[read]
                if read >= program.inputs:
                    pending.append(read)
                elif read in program.owned and saved not in self._freed and self.values[saved].storage == saved:
                    yield saved
