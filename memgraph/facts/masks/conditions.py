"""When an entry of a tensor is true: linear inequalities, joined by "and" and "or".

A negation needs no form of its own: over whole numbers, that `x >= 0` does not hold is `-x - 1 >= 0`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from memgraph.facts.masks.linear import Linear, may_hold, whole

# The most steps that a question may take; most take fewer than ten.
STEPS = 2000


@dataclass(frozen=True)
class AtLeast:
    """The expression is 0 or more."""

    expression: Linear


@dataclass(frozen=True)
class All:
    """All of the conditions hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Some:
    """One of the conditions holds, or several do."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = bool | AtLeast | All | Some


class TooIntricate(Exception):
    """A question that would take too many steps."""


def at_least(one: Linear | int, other: Linear | int = 0) -> Condition:
    """`one >= other`."""
    difference = whole(one) - other
    return AtLeast(difference) if difference.terms else difference.constant >= 0


def equal(one: Linear | int, other: Linear | int) -> Condition:
    """`one == other`."""
    return every(at_least(one, other), at_least(other, one))


def every(*parts: Condition) -> Condition:
    """All of the conditions."""
    left = tuple(dict.fromkeys(part for part in parts if part is not True))
    if any(part is False for part in left):
        return False
    return left[0] if len(left) == 1 else All(left) if left else True


def some(*parts: Condition) -> Condition:
    """One of the conditions, or several."""
    return negated(every(*map(negated, parts)))


def negated(condition: Condition) -> Condition:
    """The condition holds exactly where the other one does not."""
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, AtLeast):
        return at_least(-condition.expression, 1)
    parts = tuple(map(negated, condition.parts))
    return Some(parts) if isinstance(condition, All) else All(parts)


def possible(*conditions: Condition) -> bool:
    """False only if the conditions cannot all hold at once.  Raises TooIntricate."""
    return _possible((), conditions, iter(range(STEPS)))


def _possible(known: tuple[Linear, ...], pending: Sequence[Condition], steps: Iterator[int]) -> bool:
    """Whether the inequalities that are known may hold together with the conditions.  steps: those that are left."""
    if next(steps, None) is None:
        raise TooIntricate
    choices: list[Some] = []
    stack = list(pending)
    while stack:
        part = stack.pop()
        if part is False:
            return False
        if isinstance(part, AtLeast):
            known = (*known, part.expression)
        elif isinstance(part, All):
            stack += part.parts
        elif isinstance(part, Some):
            choices.append(part)
    if not may_hold(known):
        return False
    if not choices:
        return True
    first, rest = choices[0], choices[1:]
    return any(_possible(known, (part, *rest), steps) for part in first.parts)
