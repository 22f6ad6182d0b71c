"""Slots of whole pages in ranges of memory or of a file: best fit, and free neighbours are merged.

A slot goes back when its last reference dies, which can happen anywhere: in the middle of a garbage collection, on
autograd's threads, under the allocator's own lock. So a dying slot is only appended to a list, and the next holder of
the lock works the list off.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

PAGE = 4096


def pages(size: int) -> int:
    """`size` bytes rounded up to whole pages, and at least one page."""
    return max(-(-size // PAGE), 1) * PAGE


class Slot:
    """A range of `size` bytes from `start`, taken for as long as this object lives.

    `event` belongs to the last copy that touched the range; the next owner waits for it.
    """

    __slots__ = ("start", "size", "event", "_give_back")

    def __init__(self, start: int, size: int, give_back: Callable[[int, int, Any], None]):
        self.start, self.size, self.event, self._give_back = start, size, None, give_back

    def __del__(self) -> None:
        self._give_back(self.start, self.size, self.event)


class Slots:
    """The free and taken ranges of a tier. `vacated(start, size)` is called for each range that comes back.

    Attributes:
        live: bytes of all slots.
        peak: the most bytes that slots ever had at once.
        total: bytes of all ranges.
        events: of copies that may still touch a range that came back.
    """

    def __init__(self, vacated: Callable[[int, int], None] = lambda start, size: None):
        self.live = self.peak = self.total = 0
        self._vacated = vacated
        self._free: dict[int, int] = {}  # start -> end
        self._ends: dict[int, int] = {}  # end -> start
        self._borders: set[int] = set()  # free ranges are not merged across these
        self.events: list[Any] = []
        self._returned: deque[tuple[int, int, Any]] = deque()
        self._lock = threading.Lock()

    def add(self, start: int, size: int, *, apart: bool = True, take: int = 0) -> Slot | None:
        """Add a range. With `apart`, no slot reaches across its borders.

        take: bytes of the range that become a slot for the caller, before any other thread can take them.
        """
        taken = pages(take) if take else 0
        with self._lock:
            if apart:
                self._borders |= {start, start + size}
            self.total += size
            if taken < size:
                self._insert(start + taken, start + size)
            return self._slot(start, taken) if taken else None

    def remove(self, start: int, size: int) -> bool:
        """Remove a range that was added `apart`. Returns False and does nothing while a slot of it is taken."""
        with self._lock:
            self._settle()
            if self._free.get(start) != start + size:
                return False
            del self._ends[self._free.pop(start)]
            self._borders -= {start, start + size}  # a neighbour that comes to lie here brings its own
            self.total -= size
            return True

    def take(self, size: int) -> Slot | None:
        """The smallest free range that holds `size` bytes, cut to whole pages; None where there is none."""
        size = pages(size)
        with self._lock:
            self._settle()
            fitting = ((end - start, start) for start, end in self._free.items() if end - start >= size)
            room, start = min(fitting, default=(0, 0))
            if not room:
                return None
            end = self._free.pop(start)
            del self._ends[end]
            if room > size:
                self._free[start + size], self._ends[end] = end, start + size
            return self._slot(start, size)

    def pending(self) -> list[Any]:
        """The events of copies that may still touch a free range."""
        with self._lock:
            self._settle()
            self.events = [event for event in self.events if not event.query()]
            return list(self.events)

    def settle(self) -> None:
        """Account for all slots that came back."""
        with self._lock:
            self._settle()

    def _slot(self, start: int, size: int) -> Slot:
        self.live += size
        self.peak = max(self.peak, self.live)
        return Slot(start, size, self._give_back)

    def _give_back(self, start: int, size: int, event: Any) -> None:
        self._returned.append((start, size, event))
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._returned:
            start, size, event = self._returned.popleft()
            if event is not None:
                self.events.append(event)
            self._vacated(start, size)
            self.live -= size
            self._insert(start, start + size)

    def _insert(self, start: int, end: int) -> None:
        if start in self._ends and start not in self._borders:
            start = self._ends.pop(start)
        if end in self._free and end not in self._borders:
            end = self._free.pop(end)
        self._free[start], self._ends[end] = end, start
