"""Room on Python's stack, so that calls take no memory from the system and give it back.

CPython (from 3.11 on) keeps the frames of a thread in chunks of 16 KiB, each of them mapped when the first frame needs
it and unmapped when that frame returns. A loop whose calls cross the border of a chunk maps and unmaps one with each
call: half of the time of planning 32 layers, at one depth (docs/decisions/0014). A frame that needs more gets a
larger chunk, and what is left of that serves all frames that it calls.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Slots of eight bytes that the frame asks for, and does not touch. A chunk has a size that is a power of two: with a
# little more than half a MiB for this frame, almost as much is left for those below it.
SLOTS = 1 << 16


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


_with_slots = types.FunctionType(_called.__code__.replace(co_stacksize=SLOTS), globals())


def with_room(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a function returns, called with half a MiB of the stack in one piece."""
    result: R = _with_slots(function, args, kwargs)
    return result
