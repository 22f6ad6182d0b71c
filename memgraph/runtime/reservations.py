"""Who has reserved how much of a tier, and how the room comes back.

A reservation ends when a compiled graph is dropped. As with slots, that can happen anywhere: in a garbage collection
while this thread holds the tier's lock, or on a thread that the tier would have to wait for. So the end is only
appended to a list, which takes no lock. A thread (`Tidier`) tidies the tier soon after, and so does the next holder of
its lock.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import queue
import threading
from collections import deque
from typing import Protocol

from memgraph.base.sizes import format_size

_logger = logging.getLogger(__name__)
_SHOWN = 3  # owners that a sentence names


class Tidied(Protocol):
    """A tier to tidy: `trim` accounts for ended reservations and returns free room to the system."""

    def trim(self) -> None: ...


class Reservations:
    """The reservations of one tier, in bytes. All but `leave` is called under the lock of the tier."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[str, int]] = {}
        self._left: deque[int] = deque()
        self._numbers = itertools.count()

    def add(self, owner: str, size: int) -> int:
        """Note `size` bytes for `owner`; the number is what `leave` takes."""
        number = next(self._numbers)
        self._held[number] = owner, size
        return number

    def leave(self, number: int) -> None:
        """Append a reservation to the list of ended ones. Takes no lock, so finalizers may call it."""
        self._left.append(number)

    def settle(self) -> bool:
        """Account for all reservations that have ended. Returns whether there were any."""
        before = len(self._held)
        while self._left:
            self._held.pop(self._left.popleft(), None)
        return len(self._held) < before

    @property
    def total(self) -> int:
        """Bytes of all reservations."""
        return sum(size for _, size in self._held.values())

    def holders(self) -> tuple[tuple[str, int], ...]:
        """Each owner and its bytes, the largest first."""
        sums: dict[str, int] = {}
        for owner, size in self._held.values():
            sums[owner] = sums.get(owner, 0) + size
        return tuple(sorted(sums.items(), key=lambda item: -item[1]))


def listed(holders: tuple[tuple[str, int], ...]) -> str:
    """Who has reserved how much, as text; "" where nobody has."""
    named = [f"{format_size(size)} by {owner or 'an unnamed graph'}" for owner, size in holders[:_SHOWN]]
    if len(holders) > _SHOWN:
        named.append(f"{format_size(sum(size for _, size in holders[_SHOWN:]))} by {len(holders) - _SHOWN} more")
    return ", ".join(named)


class Tidier:
    """One thread that tidies tiers, so that no finalizer has to."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Tidied | None] = queue.SimpleQueue()  # its `put` may interrupt itself
        self._process = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread in this process, once. Finalizers must not call it."""
        with self._lock:
            if self._process != os.getpid():
                thread = threading.Thread(target=self._run, name="memgraph-tidy", daemon=True)
                thread.start()
                # When the interpreter ends it unwinds Python's threads wherever they are; within C++ that is an abort.
                atexit.register(self._stop, thread)
                self._process = os.getpid()

    def ask(self, tier: Tidied) -> None:
        """Have a tier tidied soon. Takes no lock of ours, so finalizers may call it."""
        self._asked.put(tier)

    def _stop(self, thread: threading.Thread) -> None:
        self._asked.put(None)
        thread.join()

    def _run(self) -> None:
        for tier in iter(self._asked.get, None):
            try:
                tier.trim()
            except Exception:  # the next one must be tidied all the same
                _logger.exception("room of a dropped graph was not given back to the system")
