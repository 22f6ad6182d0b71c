"""What stands at a place of a tensor, as a function of the place.

    mask = arange(n)[:, None] >= arange(n)[None, :]         mask[i, j]  is  i - j >= 0

A place is one linear expression for each dimension. An entry of a tensor of truth values is a condition; one of numbers
is a list of cases: a condition, and the number where it holds, linear in the place or a constant. Entries are asked for
from the result backwards, so no tensor is ever as large as a mask, and sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from memgraph.base import compat
from memgraph.facts.masks.conditions import Condition, at_least, equal, every, negated, possible, some
from memgraph.facts.masks.linear import Linear, size, whole
from memgraph.facts.masks.trace import Call, NotKnown, Trace

Number: TypeAlias = Linear | float
"""A whole number, or a constant of a floating type."""
Cases: TypeAlias = tuple[tuple[Condition, Number], ...]
"""Together the conditions hold everywhere; where two of them hold, the numbers are equal."""
Entry: TypeAlias = Condition | Cases
Place: TypeAlias = tuple[Linear, ...]
Within: TypeAlias = tuple[Condition, ...]
"""What is known of a place: all of these conditions hold."""
Rule: TypeAlias = Callable[["Entries", Call, Place, Within], Entry]

# No entry of a mask of positions has more cases than this.
MOST = 32
# No symbolic size is larger: there is no memory for such a tensor.
LARGEST = 1 << 47


class Entries:
    """The entries of the tensors of a trace.  Methods raise NotKnown, and TooIntricate, where one is not known."""

    def __init__(self, trace: Trace, rules: dict[str, Rule], *, with_data: bool = False) -> None:
        """with_data: a truth value or a whole number that is not known may be any, and is no reason to raise."""
        self.trace, self.rules, self.with_data = trace, rules, with_data
        self.defined: Within = ()
        """What holds of variables that stand for a number made of others, whatever these are: part of each question."""
        self._known: dict[tuple, Entry] = {}
        self._defined: dict[Any, Linear] = {}
        self._sizes = self._bounds()
        self._fresh = 0

    def _bounds(self) -> dict[str, Within]:
        """By symbol that is the size of a tensor: it is 0 or more, and at most LARGEST. Others may be any number."""
        tensors = (call.output for call in self.trace.calls.values())
        lengths = {part for tensor in tensors for part in map(size, tensor.shape)}
        return {
            length.terms[0][0]: (at_least(length), at_least(LARGEST, length))
            for length in lengths
            if len(length.terms) == 1 and length.terms[0][1] == 1
        }

    def fresh(self) -> Linear:
        """A new variable."""
        self._fresh += 1
        return Linear(((f"step {self._fresh}", 1),))

    def quotient(self, number: Linear, divisor: int) -> Linear:
        """A number divided by a positive one, rounded down."""
        if number.number is not None:
            return whole(number.number // divisor)

        def holds(found: Linear) -> Within:
            rest = number - found * divisor
            return at_least(rest), at_least(divisor - 1, rest)

        return self._one((number, divisor), holds)

    def count(self, key: Any, most: Linear) -> Linear:
        """How many of at most `most` things there are, which data tell.  key: of what is counted."""
        return self._one(key, lambda found: (at_least(found), at_least(most, found)))

    def _one(self, key: Any, holds: Callable[[Linear], Within]) -> Linear:
        """The variable of a key, of which something holds."""
        if key not in self._defined:
            self._defined[key] = self.fresh()
            self.defined += holds(self._defined[key])
        return self._defined[key]

    def possible(self, *conditions: Condition) -> bool:
        """False only if the conditions cannot all hold at once.  Raises TooIntricate."""
        return possible(*self.defined, *conditions)

    def at(self, tensor: torch.Tensor, place: Place, within: Within) -> Entry:
        """What stands at a place of a tensor."""
        key = (id(tensor), place, within)
        if key not in self._known:
            self._known[key] = self._found(tensor, place, within)
        return self._known[key]

    def _found(self, tensor: torch.Tensor, place: Place, within: Within) -> Entry:
        try:
            return self._settled(self._entry(tensor, place, within), tensor.dtype, within)
        except NotKnown:
            if not self.with_data or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                raise
        # A variable that nothing else has: a proof holds for all that it may be.
        number = self.fresh()
        return at_least(number) if tensor.dtype is torch.bool else ((True, number),)

    def condition(self, given: Any, place: Place, within: Within) -> Condition:
        """When an operand, a tensor or a number, is true."""
        if isinstance(given, torch.Tensor):
            return as_condition(self.at(given, place, within))
        return bool(given) if isinstance(given, int | float) else as_condition(((True, _plain(given)),))

    def cases(self, given: Any, place: Place, within: Within) -> Cases:
        """The numbers of an operand, a tensor or a number."""
        if isinstance(given, torch.Tensor):
            return as_cases(self.at(given, place, within))
        return ((True, _plain(given)),)

    def _entry(self, tensor: torch.Tensor, place: Place, within: Within) -> Entry:
        call = self.trace.calls.get(id(tensor))
        if call is None:
            return self._given(tensor)
        if call.name not in self.rules:
            raise NotKnown(f"{call.name} is no operator of masks of positions")
        return self.rules[call.name](self, call, place, within)

    def _given(self, tensor: torch.Tensor) -> Entry:
        """What stands in a tensor that no operator makes: a constant of one number."""
        if compat.is_fake(tensor) or tensor.numel() != 1 or id(tensor) in self.trace.names:
            raise NotKnown(f"it is made of data ({self.trace.names.get(id(tensor), 'a tensor of constants')})")
        with compat.really():
            number = tensor.item()
        return number if isinstance(number, bool) else ((True, _plain(number)),)

    def _settled(self, entry: Entry, dtype: torch.dtype, within: Within) -> Entry:
        """The same entry without cases that are impossible.  Raises NotKnown for a number that its type cannot hold."""
        if not isinstance(entry, tuple):
            if isinstance(entry, bool):
                return entry
            if not self.possible(*within, entry):
                return False
            return True if not self.possible(*within, negated(entry)) else entry
        found: dict[Number, list[Condition]] = {}
        for condition, number in entry:
            if self.possible(*within, condition):
                found.setdefault(_key(number), []).append(condition)
        if len(found) > MOST:
            raise NotKnown("its entries are of too many kinds")
        settled = tuple((some(*conditions), number) for number, conditions in found.items())
        if not dtype.is_floating_point and not dtype.is_complex:
            self._refuse_overflow(settled, dtype, within)
        return settled if len(settled) != 1 else ((True, settled[0][1]),)

    def _refuse_overflow(self, cases: Cases, dtype: torch.dtype, within: Within) -> None:
        limits = torch.iinfo(dtype)
        for condition, number in cases:
            if not isinstance(number, Linear):
                raise NotKnown(f"it turns {number} into a whole number")
            sizes = [bound for name, _ in number.terms for bound in self._sizes.get(name, ())]
            for beyond in (at_least(number, limits.max + 1), at_least(limits.min - 1, number)):
                if self.possible(*within, *sizes, condition, beyond):
                    raise NotKnown(f"a number in it may be too large for {dtype}")


def _key(number: Number) -> Number:
    """Not-a-number is equal to nothing, and there is one of it."""
    return number if isinstance(number, Linear) or number == number else float("nan")


def _plain(number: Any) -> Number:
    """A number of the graph: plain, or a symbolic size."""
    if isinstance(number, bool | int):
        return whole(number)
    if isinstance(number, float):
        return number
    if compat.is_size(number):
        return size(number)
    raise NotKnown(f"{number!r} is no number that is known")


def as_condition(entry: Entry) -> Condition:
    """When an entry is true: a number is where it is not 0."""
    if not isinstance(entry, tuple):
        return entry
    return some(*(every(condition, _true(number)) for condition, number in entry))


def _true(number: Number) -> Condition:
    return negated(equal(number, 0)) if isinstance(number, Linear) else number != 0.0


def as_cases(entry: Entry) -> Cases:
    """An entry as numbers: truth values are 1 and 0."""
    return entry if isinstance(entry, tuple) else ((entry, whole(1)), (negated(entry), whole(0)))


def converted(entry: Entry, dtype: torch.dtype) -> Entry:
    """An entry in another type.  Raises NotKnown for a number that it may not hold exactly."""
    if dtype is torch.bool:
        return as_condition(entry)
    return tuple((condition, number_as(number, dtype)) for condition, number in as_cases(entry))


def number_as(number: Number, dtype: torch.dtype) -> Number:
    """A number in a type."""
    if dtype.is_floating_point:
        if isinstance(number, Linear):
            if number.number is None:
                raise NotKnown("it turns positions into a floating type")
            number = float(number.number)
        return rounded(number, dtype)
    if isinstance(number, Linear):
        return number
    if not number.is_integer():
        raise NotKnown(f"it turns {number} into a whole number")
    return whole(int(number))


def rounded(number: float, dtype: torch.dtype) -> float:
    """The nearest number that a floating type has."""
    with compat.really():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()


def aligned(place: Place, shape: Sequence[Any]) -> Place:
    """The place that an entry-by-entry operator reads in an operand of this shape, for a place of its output."""
    last = place[len(place) - len(shape) :]
    return tuple(
        whole(0) if isinstance(length, int) and length == 1 else index
        for index, length in zip(last, shape, strict=True)
    )


def joined(one: Cases, other: Cases, function: Callable[[Number, Number], Number]) -> Cases:
    """A number computed from two."""
    return tuple((every(first, second), function(left, right)) for first, left in one for second, right in other)


def one_of(parts: Iterable[tuple[Condition, Entry]], dtype: torch.dtype) -> Entry:
    """One entry of several, each with the condition under which it applies.  dtype: of the tensor that it stands in."""
    if dtype is torch.bool:
        return some(*(every(condition, as_condition(entry)) for condition, entry in parts))
    return tuple((every(condition, case), number) for condition, entry in parts for case, number in as_cases(entry))


def inside(place: Iterable[Linear], shape: Iterable[Any]) -> Within:
    """The conditions under which a place lies in a tensor of this shape."""
    found: list[Condition] = []
    for index, length in zip(place, shape, strict=True):
        found += [at_least(index), at_least(size(length), index + 1)]
        found += [] if isinstance(length, int) else [at_least(LARGEST, index)]
    return tuple(found)
