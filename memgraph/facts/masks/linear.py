"""Whether linear inequalities over whole numbers can hold together.

Problem: is there no assignment of whole numbers to the variables (places in a tensor, symbolic sizes) for which all of
some linear expressions are 0 or more? A proof that a mask is the causal one consists of such questions.
Why not a library: the answer has to be exact, with numbers of any size; there are two to eight variables, and a solver
for integer programs (scipy's) works with floating point.
Algorithm: Fourier and Motzkin's elimination, one variable after another. Where all coefficients of an inequality have a
divisor, the constant is rounded down to a multiple of it, as the variables are whole numbers. "Cannot hold" is a proof;
"may hold" is none, as fractions may be needed, or the inequalities became too many.
Oracle: tests/facts/test_masks_linear.py tries all small numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# With more inequalities the elimination stops without a proof.
MOST = 300


@dataclass(frozen=True)
class Linear:
    """A sum of variables times whole numbers, and a constant."""

    terms: tuple[tuple[str, int], ...] = ()
    """Variables, sorted by name, with their coefficients, none of which is 0."""
    constant: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        other = whole(other)
        found = dict(self.terms)
        for name, factor in other.terms:
            found[name] = found.get(name, 0) + factor
        return _linear(found, self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        return _linear({name: old * factor for name, old in self.terms}, self.constant * factor)

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -whole(other)

    @property
    def number(self) -> int | None:
        """The constant, where there is no variable."""
        return None if self.terms else self.constant


def variable(name: str) -> Linear:
    return Linear(((name, 1),))


def whole(number: Linear | int) -> Linear:
    """A whole number as a linear expression.  Raises TypeError for anything else: a symbol would lose its meaning."""
    if isinstance(number, Linear):
        return number
    if not isinstance(number, int):
        raise TypeError(f"{number!r} is no plain number")
    return Linear((), int(number))


def size(given: Any) -> Linear:
    """A size, plain or symbolic. What is not linear in its symbols is a variable of its own."""
    if isinstance(given, int):
        return whole(given)
    found = Linear()
    for term, factor in given.node.expr.expand().as_coefficients_dict().items():
        if not factor.is_Integer:
            return variable(f"size {given.node.expr}")
        found += whole(int(factor)) if term.is_Number else variable(f"size {term}") * int(factor)
    return found


def may_hold(expressions: Iterable[Linear]) -> bool:
    """False only if the expressions cannot all be 0 or more, for any whole numbers."""
    return _may_hold(frozenset(expressions))


@functools.lru_cache(maxsize=4096)
def _may_hold(expressions: frozenset[Linear]) -> bool:
    known: dict[tuple, int] = {}
    if not all(_note(known, expression) for expression in expressions):
        return False
    while known:
        name = _next(known)
        above = [(dict(terms), constant) for terms, constant in known.items() if dict(terms).get(name, 0) > 0]
        below = [(dict(terms), constant) for terms, constant in known.items() if dict(terms).get(name, 0) < 0]
        known = {terms: constant for terms, constant in known.items() if name not in dict(terms)}
        for one, low in above:
            for other, high in below:
                first, second = -other[name], one[name]
                joined = {term: one.get(term, 0) * first + other.get(term, 0) * second for term in one | other}
                if not _note(known, _linear(joined, low * first + high * second)):
                    return False
        if len(known) > MOST:
            return True
    return True


def _note(known: dict[tuple, int], expression: Linear) -> bool:
    """Add an inequality; False if it cannot hold by itself."""
    if not expression.terms:
        return expression.constant >= 0
    divisor = math.gcd(*(factor for _, factor in expression.terms))
    terms = tuple((name, factor // divisor) for name, factor in expression.terms)
    constant = expression.constant // divisor
    known[terms] = min(constant, known.get(terms, constant))
    return True


def _next(known: Mapping[tuple, int]) -> str:
    """The variable whose elimination leaves the fewest inequalities."""
    rising: dict[str, int] = {}
    falling: dict[str, int] = {}
    for terms in known:
        for name, factor in terms:
            count = rising if factor > 0 else falling
            count[name] = count.get(name, 0) + 1
    names = sorted(rising.keys() | falling.keys())
    return min(names, key=lambda name: rising.get(name, 0) * falling.get(name, 0))


def _linear(terms: Mapping[str, int], constant: int) -> Linear:
    return Linear(tuple(sorted((name, factor) for name, factor in terms.items() if factor)), constant)
