"""Processes that run one graph together, since it has collectives in it, and so must run it by one plan.

A collective that one rank runs again in its backward and another one does not is waited for in vain. So whatever
decides about a plan is made the same on all ranks: each says what it has, the first of them draws the conclusion, and
all go by that. They speak through the store of the process group, never by collectives: what comes too late or not at
all is an error there, and not the end of the group.

    rank 0   says 10 ----------- reads 10, 12 -> 12 ------ 12
    rank 1          says 12 ------------------------ waits 12
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

from memgraph.base.errors import RanksError
from memgraph.step.meter import Meter
from memgraph.step.variants import Entry


class Store(Protocol):
    """What is needed of torch's stores of keys."""

    timeout: timedelta

    def set(self, key: str, value: str) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Raises where a key is not set in time."""

    def get(self, key: str) -> bytes: ...

    def delete_key(self, key: str) -> bool: ...


class Ranks:
    """The ranks of one graph, as one of them sees them. All of them must call the same methods in the same order."""

    def __init__(self, store: Store, members: Sequence[int], rank: int) -> None:
        """members: the ranks, in ascending order.  rank: this one's, among them."""
        self._store, self._members, self._rank = store, tuple(members), rank
        self._name = f"memgraph/{'-'.join(map(str, _stretches(self._members)))}/{next(_graphs(self._members))}"
        self._turns = itertools.count()

    def agree(self, what: str, mine: Any, conclude: Callable[[list[Any]], Any]) -> Any:
        """What `conclude` makes of all ranks' values, in the order of the ranks.  mine: this rank's, as JSON has it.

        what: what is agreed upon, to read. Raises RanksError where a rank speaks of something else, has failed, or
        does not answer within the store's timeout; the first of the ranks is the only one that calls `conclude`.
        """
        turn = next(self._turns)
        self._store.set(self._key(turn, self._rank), json.dumps({"what": what, "value": mine}))
        if self._rank == self._members[0]:
            with self.telling(turn):
                values = [self._said(what, turn, rank) for rank in self._members]
                self._store.set(self._key(turn, None), json.dumps({"what": what, "value": conclude(values)}))
        concluded = self._said(what, turn, None)
        if turn:  # all have read the turn before, or they would not have come to this one
            self._store.delete_key(self._key(turn - 1, self._rank))
            if self._rank == self._members[0]:
                self._store.delete_key(self._key(turn - 1, None))
        return concluded

    def same(self, what: str, mine: str) -> None:
        """Check that a text is the same on all ranks.  Raises RanksError on all of them where it is not."""
        said = self.agree(what, mine, list)
        if len(set(said)) > 1:
            sides: dict[str, list[str]] = {}
            for rank, text in zip(self._members, said, strict=True):
                sides.setdefault(text, []).append(str(rank))
            told = "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in sides.items())
            raise RanksError(f"the ranks differ in {what}: {told}")

    @contextlib.contextmanager
    def telling(self, turn: int | None = None) -> Iterator[None]:
        """An error within it is told to the others, who wait, and goes on.

        turn: of the conclusion that they wait for; None where they wait for what this rank says next.
        """
        try:
            yield
        except BaseException as error:
            rank = None if self._rank == self._members[0] else self._rank  # what the others wait for, or the first one
            key = self._key(next(self._turns) if turn is None else turn, rank)
            told = error.reason if isinstance(error, RanksError) else f"rank {self._rank} failed: {_first_line(error)}"
            with contextlib.suppress(Exception):  # the store may be what failed
                self._store.set(key, json.dumps({"failed": told}))
            raise

    def _key(self, turn: int, rank: int | None) -> str:
        return f"{self._name}/{turn}/{'all' if rank is None else rank}"

    def _said(self, what: str, turn: int, rank: int | None) -> Any:
        """What a rank has said, or, for None, what was concluded of it."""
        key, whom = self._key(turn, rank), f"rank {self._members[0] if rank is None else rank}"
        longest = self._store.timeout * (2 if rank is None else 1)  # the first one says it, if it waits in vain
        try:
            self._store.wait([key], longest)
            said = json.loads(self._store.get(key))
        except Exception as error:
            raise RanksError(f"{whom} has not answered as to {what}: {_first_line(error)}") from error
        if "failed" in said:
            raise RanksError(said["failed"])
        if said["what"] != what:
            raise RanksError(f"{whom} is at {said['what']}, rank {self._rank} at {what}")
        return said["value"]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _stretches(members: tuple[int, ...]) -> Iterator[str]:
    """Ranks to name: 0..7 where they follow one another."""
    for _, numbered in itertools.groupby(enumerate(members), lambda pair: pair[1] - pair[0]):
        stretch = [rank for _, rank in numbered]
        yield str(stretch[0]) if len(stretch) == 1 else f"{stretch[0]}..{stretch[-1]}"


@functools.cache
def _graphs(members: tuple[int, ...]) -> Iterator[int]:
    """Numbers of graphs: ranks of one group compile theirs in the same order."""
    return itertools.count()


def tightest(entries: list[list[Any]]) -> list[Any]:
    """Of the entries of several ranks one that is at least as tight as each, all as JSON has them."""
    levels, to_come, sizes, later, to_rise = zip(*entries, strict=True)
    largest = [max(size) for size in zip(*sizes, strict=True)]
    return [max(levels), max(to_come), largest, max(later), max(to_rise)]


class SharedMeter(Meter):
    """Reads what is allocated on all ranks: the highest level of any, the largest sizes of any.

    They agree on every launch: that a launch differs from the one before it may be so on one rank alone, which no other
    one knows. `entry` and `exact` raise RanksError, as `Ranks.agree` does.
    """

    def __init__(self, meter: Meter, ranks: Ranks) -> None:
        super().__init__(meter.device, meter.arguments, meter.run)
        self.ranks = ranks

    def entry(self, args: Sequence[Any]) -> Entry:
        with self.ranks.telling():
            found = super().entry(args)
        return self._agreed("a launch", found)

    def exact(self, entry: Entry, args: Sequence[Any]) -> Entry:
        with self.ranks.telling():
            found = super().exact(entry, args)
        return self._agreed("a launch, counted anew", found)

    def _agreed(self, what: str, mine: Entry) -> Entry:
        told = [mine.level, mine.to_come, list(mine.sizes), mine.later, mine.to_rise]
        level, to_come, sizes, later, to_rise = self.ranks.agree(what, told, tightest)
        return dataclasses.replace(mine, level=level, to_come=to_come, sizes=tuple(sizes), later=later, to_rise=to_rise)
