"""Python's collector of garbage, held back."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Within it Python collects no garbage by itself.

    Tracing and lowering make millions of objects that live on, and each collection looks at all of them: a Llama of 32
    layers was captured in 22 s instead of 32, and planned in 3.8 s instead of 6.0. An explicit `gc.collect` still
    collects.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
