"""The largest size that fits, asked as few times as can be.

Problem: a size fits or it does not, and each question costs a plan. Which is the largest multiple of a step that fits?

Why not a library: bisection ignores by how much a size does not fit, which says nearly all: peaks grow about linearly
with the size. And the end must be exact, so a root found in floating point will not do.

Algorithm: double from the start until a size does not fit. From then on go where the line through the excesses of the
two smallest sizes that do not fit meets the budget, or, with one excess known, in proportion; after a few such guesses,
halve the interval. The end is one size that was asked and fits, and the next one, which was asked and does not.

Oracle: tests/backend/test_largest.py asks every size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from memgraph.backend.explore import Answer

# Guesses by lines before the interval is halved.
GUESSES = 5


@dataclasses.dataclass(frozen=True)
class Largest:
    """What was found. All sizes are multiples of the step."""

    size: int | None
    """The largest size that fits; None where not even one step does."""
    refused: Answer | None
    """The next size, which does not fit; None where the most that was asked for fits."""
    asked: tuple[Answer, ...]
    """All answers, in the order of the questions."""


def largest(ask: Callable[[int], Answer], *, start: int, step: int, most: int) -> Largest:
    """The largest multiple of `step` up to `most` that fits and whose next does not.

    ask: answers for one size.  start: the size to begin with.
    """
    fits, refused = 0, None
    asked: list[Answer] = []
    top = max(1, most // step)
    at = min(max(1, start // step), top)
    while True:
        answer = ask(at * step)
        asked.append(answer)
        if answer.fits:
            fits = at
        else:
            refused = answer
        over = None if refused is None else refused.size // step
        if fits == top or over == fits + 1:
            return Largest(fits * step if fits else None, refused, tuple(asked))
        at = _next(asked, step, fits, top if over is None else over)


def _next(asked: list[Answer], step: int, fits: int, over: int) -> int:
    """The size to ask about next, in steps.  fits, over: the largest that fits, and the smallest that does not."""
    refused = sorted((answer for answer in asked if not answer.fits), key=lambda answer: answer.size)
    if not refused:
        return min(2 * fits, over)
    low, high = fits + 1, over - 1
    if len(refused) > GUESSES or (fits and len(asked) > 2 * GUESSES):
        return (low + high) // 2
    nearest = refused[0]
    if len(refused) == 1:
        share = nearest.above / (nearest.above + nearest.excess) if nearest.above > 0 else 0.0
        guess = int(nearest.size * share) // step
    else:
        second = refused[1]
        slope = (second.excess - nearest.excess) / (second.size - nearest.size)
        guess = int(nearest.size - nearest.excess / slope) // step if slope > 0 else (low + high) // 2
    return min(max(guess, low), high)
