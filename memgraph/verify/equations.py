"""Small whole numbers that satisfy equations between sizes.

    a = b + b + c        a * d = e        find small a, b, c, d, e that satisfy both

Backtracking: the unknown of an equation with one unknown follows from it; else a size is guessed, small numbers first.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Combine(enum.Enum):
    """How the sizes of one side of an equation make its value."""

    SUM = "sum"
    PRODUCT = "product"


@dataclass(frozen=True)
class Equation:
    """Two sides that have the same value. A side says how often each size occurs in it."""

    combine: Combine
    left: Counter[int]
    right: Counter[int]

    @property
    def sizes(self) -> set[int]:
        return {*self.left, *self.right}

    def value(self, side: Counter[int], found: Mapping[int, int]) -> int:
        """The value of a side with the numbers that were found."""
        if self.combine is Combine.SUM:
            return sum(found[size] * times for size, times in side.items())
        return math.prod(found[size] ** times for size, times in side.items())

    def solve(self, size: int, found: Mapping[int, int]) -> int | None:
        """The one unknown size. None: no whole number satisfies the equation."""
        left, right, times = self.left, self.right, self.left[size] - self.right[size]
        if times < 0:
            left, right, times = right, left, -times
        rest = [Counter({name: n for name, n in side.items() if name != size}) for side in (left, right)]
        one, other = (self.value(side, found) for side in rest)
        if not times:
            return size if one == other else None
        if self.combine is Combine.SUM:
            value, remainder = divmod(other - one, times)
            return None if remainder else value
        value, remainder = divmod(other, one)
        return value if not remainder and times == 1 else None


@dataclass(frozen=True)
class Choice:
    """What a size may become."""

    guesses: Sequence[int]
    """In the order in which they are tried."""
    multiple_of: int = 1
    """A number that follows from an equation is a multiple of it, too; a size that stays as it is need not be."""


def search(
    equations: Sequence[Equation], choices: Mapping[int, Choice], found: Mapping[int, int], guesses: int
) -> dict[int, int] | None:
    """The first numbers that satisfy all equations. None: there are none, or it takes more guesses than these.

    choices: by size.  found: sizes whose numbers are known.
    """
    return _search(equations, choices, dict(found), [guesses])


def _search(
    equations: Sequence[Equation], choices: Mapping[int, Choice], found: dict[int, int], left: list[int]
) -> dict[int, int] | None:
    """left: the number of guesses that are left; it is counted down."""
    found = dict(found)
    if not _settle(equations, choices, found):
        return None
    unknown = [size for size in sorted(choices) if size not in found]
    if not unknown:
        return found
    bound = {size for equation in equations for size in equation.sizes}
    size = next((size for size in unknown if size in bound), unknown[0])
    used = set(found.values())
    for guess in sorted((n for n in choices[size].guesses if n < size), key=lambda n: n in used):
        left[0] -= 1
        if left[0] < 0:
            return None
        if solved := _search(equations, choices, found | {size: guess}, left):
            return solved
    return _search(equations, choices, found | {size: size}, left)


def _settle(equations: Sequence[Equation], choices: Mapping[int, Choice], found: dict[int, int]) -> bool:
    """Add to `found` what follows from it. False: the equations contradict it."""
    more = True
    while more:
        more = False
        for equation in equations:
            unknown = {size for size in equation.sizes if size not in found}
            if len(unknown) > 1:
                continue
            if not unknown:
                if equation.value(equation.left, found) != equation.value(equation.right, found):
                    return False
                continue
            size = unknown.pop()
            value = equation.solve(size, found)
            if value is None or value < min(2, size):
                return False
            if size in choices and value % choices[size].multiple_of and value != size:
                return False
            found[size], more = value, True
    return True
