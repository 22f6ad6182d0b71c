"""The objects of a class that Python can reach."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any


def instances(*kinds: type) -> Iterator[Any]:
    """All objects that the collector knows whose type is one of `kinds` or comes of it."""
    return instances_among(gc.get_objects(), *kinds)


def instances_among(objects: Iterable[Any], *kinds: type) -> Iterator[Any]:
    """Those of these objects whose type is one of `kinds` or comes of it."""
    # The type, not isinstance: that asks the object for its __class__, which lazy proxies act upon. Its bases, not
    # issubclass: an abstract class remembers every type that it was asked about, and with two threads that ask it of
    # all types of the process at once, Python 3.11 died of a segmentation fault.
    known: dict[int, bool] = {}
    for candidate in objects:
        own = type(candidate)
        comes = known.get(id(own))
        if comes is None:
            # None for a class that another thread is just making.
            bases = type.__getattribute__(own, "__mro__") or ()
            comes = known[id(own)] = any(base is kind for base in bases for kind in kinds)
        if comes:
            yield candidate
