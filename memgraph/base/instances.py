"""The objects of a class that Python can reach."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any


def instances(*kinds: type) -> Iterator[Any]:
    """All objects that the collector knows whose type is one of `kinds` or comes of it."""
    return instances_among(gc.get_objects(), *kinds)


def instances_among(objects: Iterable[Any], *kinds: type) -> Iterator[Any]:
    """Those of these objects whose type is one of `kinds` or comes of it."""
    # The type, not isinstance: that asks the object for its __class__, which lazy proxies act upon. What comes of a
    # class, not issubclass: an abstract class remembers every type that it was asked about, and with two threads that
    # ask it of all types of the process at once, Python 3.11 died of a segmentation fault. And no line of Python for
    # each object: a process that trains has half a million, and each launch on a CPU that must be counted looks at all.
    classes = _with_subclasses(kinds)
    wanted = set(map(id, classes))  # an own metaclass may say that its classes equal others
    among = objects if isinstance(objects, list) else list(objects)
    yield from compress(among, map(wanted.__contains__, map(id, map(type, among))))


def _with_subclasses(kinds: Iterable[type]) -> list[type]:
    """The classes and all that come of them, however indirectly, each once."""
    found: dict[int, type] = {}
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            pending += type.__subclasses__(kind)
    return list(found.values())
