"""Linear inequalities over whole numbers: what "cannot hold" says is true, by trying all small numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from memgraph.facts.masks.conditions import AtLeast, at_least, equal, every, negated, possible, some
from memgraph.facts.masks.linear import Linear, may_hold, variable, whole

NAMES = ("x", "y", "z")
NUMBERS = range(-4, 5)
factors = st.integers(-3, 3)
linears = st.builds(
    lambda x, y, z, constant: variable("x") * x + variable("y") * y + variable("z") * z + constant,
    factors,
    factors,
    factors,
    st.integers(-7, 7),
)


def conditions():
    leaves = st.one_of(st.booleans(), linears.map(at_least), st.builds(equal, linears, linears))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(inner.map(negated), st.builds(every, inner, inner), st.builds(some, inner, inner)),
        max_leaves=5,
    )


def value(expression: Linear, numbers: dict[str, int]) -> int:
    return sum(numbers[name] * factor for name, factor in expression.terms) + expression.constant


def holds(condition, numbers: dict[str, int]) -> bool:
    if isinstance(condition, bool):
        return condition
    if isinstance(condition, AtLeast):
        return value(condition.expression, numbers) >= 0
    return (all if type(condition).__name__ == "All" else any)(holds(part, numbers) for part in condition.parts)


def assignments():
    return (dict(zip(NAMES, numbers, strict=True)) for numbers in itertools.product(NUMBERS, repeat=3))


@given(st.lists(linears, max_size=5))
def test_what_cannot_hold_holds_nowhere(expressions):
    if not may_hold(expressions):
        assert not any(all(value(one, numbers) >= 0 for one in expressions) for numbers in assignments())


@given(conditions())
def test_what_is_impossible_holds_nowhere_and_a_negation_everywhere_else(condition):
    known = [holds(condition, numbers) for numbers in assignments()]
    assert known == [not holds(negated(condition), numbers) for numbers in assignments()]
    if not possible(condition):
        assert not any(known)


def test_fractions_are_no_places():
    """2x = 1 has no solution in whole numbers; nor has anything between two neighbours."""
    x = variable("x")
    assert not may_hold([x * 2 - 1, -(x * 2) + 1])
    assert not possible(equal(x * 3, 7)) and possible(equal(x * 3, 6))
    assert not possible(at_least(x, 1), at_least(whole(0), x)) and possible(at_least(x, 1), at_least(whole(1), x))


def test_numbers_may_be_of_any_size():
    x, n = variable("x"), variable("n")
    assert not may_hold([x - n, n - x - 1])
    assert not may_hold([x - (1 << 70), -x + (1 << 70) - 1])
