"""For tests: copies run as late as the protocol allows, and memory that nobody may read holds garbage.

Inside `sanitized()` a copy between device and memory runs in its finish and not before; each disk block moves `delay`
seconds late; destinations, released host slots and staging buffers are filled with 0xFF. A program with the same bits
inside and outside reads nothing before it is ready, and nothing after it was given up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

POISON = 0xFF

_delays: list[float] = []  # of the blocks that are open, in all threads


@contextlib.contextmanager
def sanitized(delay: float = 0.005) -> Iterator[None]:
    """Delay and poison in this process while the block lasts. `delay` is in seconds."""
    _delays.append(delay)
    try:
        yield
    finally:
        _delays.remove(delay)


def active() -> bool:
    """Whether copies are to be late."""
    return bool(_delays)


def dawdle() -> None:
    """Wait as long as the sanitizer asks for; not at all without one."""
    if _delays:
        time.sleep(max(_delays, default=0))
