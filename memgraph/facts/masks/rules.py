"""The operators of which it is known what stands at a place of their output.

Every rule takes the entries of the trace, one call, a place in its output, and what is known of the place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from memgraph.facts.masks.conditions import Condition, at_least, equal, every, negated, possible, some
from memgraph.facts.masks.entries import (
    Cases,
    Entries,
    Entry,
    Number,
    Place,
    Rule,
    Within,
    aligned,
    as_cases,
    as_condition,
    converted,
    joined,
    number_as,
    one_of,
)
from memgraph.facts.masks.linear import Linear, size, whole
from memgraph.facts.masks.places import PLACES
from memgraph.facts.masks.trace import Call, NotKnown

# --- constants and positions -------------------------------------------------------------------------------


def _arange(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    given = call.arguments
    start, step = given.get("start", 0), given.get("step", 1)
    if call.output.dtype.is_floating_point or isinstance(start, float) or not isinstance(step, int):
        raise NotKnown("its positions are of a floating type")
    return ((True, (whole(start) if isinstance(start, int) else size(start)) + place[0] * step),)


def _filled(number: Any = None) -> Rule:
    """The rule for tensors of one number; None: the number is an argument of the call."""

    def rule(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
        given = call.arguments
        value = number if number is not None else given["fill_value"] if "fill_value" in given else given["s"]
        return converted(entries.cases(value, (), within), call.output.dtype)

    return rule


# --- entry by entry ----------------------------------------------------------------------------------------


def _operand(entries: Entries, call: Call, name: str, place: Place, within: Within) -> Entry:
    """What an operator reads of an operand for a place of its output."""
    given = call.arguments[name]
    if isinstance(given, torch.Tensor):
        return entries.at(given, aligned(place, given.shape), within)
    return given if isinstance(given, bool) else entries.cases(given, (), within)


def _logical(combine: Callable[..., Condition]) -> Rule:
    def rule(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
        if call.output.dtype is not torch.bool:
            raise NotKnown(f"{call.name} works on the bits of numbers")
        names = [name for name in ("self", "other") if name in call.arguments]
        parts = [as_condition(_operand(entries, call, name, place, within)) for name in names]
        return combine(*parts)

    return rule


def _exclusive(one: Condition, other: Condition) -> Condition:
    return some(every(one, negated(other)), every(negated(one), other))


def _same(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """Copies, and conversions to another type."""
    name = "a" if "a" in call.arguments else "self"
    return converted(_operand(entries, call, name, place, within), call.output.dtype)


def _arithmetic(function: Callable[[Number, Number], Number], reverse: bool = False) -> Rule:
    def rule(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
        dtype, scale = call.output.dtype, call.arguments.get("alpha", 1)
        if dtype is torch.bool or not isinstance(scale, int) or scale != 1:
            raise NotKnown(f"{call.name} is called in a way that is not known")
        sides = [_operand(entries, call, name, place, within) for name in ("self", "other")]
        one, other = (_cases(side, dtype) for side in (reversed(sides) if reverse else sides))
        found = joined(one, other, function)
        return tuple((condition, number_as(number, dtype)) for condition, number in found)

    return rule


def _cases(entry: Entry, dtype: torch.dtype) -> Cases:
    return as_cases(converted(entry, dtype))


def _add(one: Number, other: Number) -> Number:
    return one + other  # type: ignore[operator]


def _subtract(one: Number, other: Number) -> Number:
    return one - other  # type: ignore[operator]


def _multiply(one: Number, other: Number) -> Number:
    if isinstance(one, Linear) and isinstance(other, Linear):
        if other.number is None:
            one, other = other, one
        if other.number is None:
            raise NotKnown("it multiplies positions")
        return one * other.number
    return one * other  # type: ignore[operator]


def _negative(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    return tuple(
        (c, -number) for c, number in _cases(_operand(entries, call, "self", place, within), call.output.dtype)
    )


def _absolute(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    found: list[tuple[Condition, Number]] = []
    for condition, number in _cases(_operand(entries, call, "self", place, within), call.output.dtype):
        if isinstance(number, Linear):
            found.append((every(condition, at_least(number)), number))
            found.append((every(condition, at_least(-1, number)), -number))
        else:
            found.append((condition, abs(number)))
    return tuple(found)


def _comparison(whole_numbers: Callable[[Linear, Linear], Condition], floating: Callable[[float, float], bool]) -> Rule:
    def rule(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
        types = {given.dtype for given in call.arguments.values() if isinstance(given, torch.Tensor)}
        if len(types) > 1:
            raise NotKnown(f"{call.name} compares different types")
        (dtype,) = types
        one, other = (_compared(_operand(entries, call, name, place, within), dtype) for name in ("self", "other"))
        found: list[Condition] = []
        for first, left in one:
            for second, right in other:
                if isinstance(left, Linear) and isinstance(right, Linear):
                    found.append(every(first, second, whole_numbers(left, right)))
                elif isinstance(left, float) and isinstance(right, float):
                    found.append(every(first, second, floating(left, right)))
                else:
                    raise NotKnown(f"{call.name} compares positions with a fraction")
        return some(*found)

    return rule


def _compared(entry: Entry, dtype: torch.dtype) -> Cases:
    """Numbers that are compared in a type.  Raises NotKnown for one that would be rounded first."""
    if not dtype.is_floating_point:
        return as_cases(entry)
    found = as_cases(converted(entry, dtype))
    for (_, before), (_, after) in zip(as_cases(entry), found, strict=True):
        if isinstance(before, float) and before != after and before == before:
            raise NotKnown(f"it compares with {before}, which is rounded to {after} first")
    return found


def _where(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    chosen = as_condition(_operand(entries, call, "condition", place, within))
    return _choice(entries, call, chosen, ("self", "other"), place, within)


def _masked_fill(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    chosen = as_condition(_operand(entries, call, "mask", place, within))
    return _choice(entries, call, chosen, ("value", "self"), place, within)


def _choice(
    entries: Entries, call: Call, chosen: Condition, names: tuple[str, str], place: Place, within: Within
) -> Entry:
    """The first operand where a condition holds, the second elsewhere. One that is never taken is not asked for."""
    parts = []
    for condition, name in ((chosen, names[0]), (negated(chosen), names[1])):
        if possible(*within, condition):
            entry = _operand(entries, call, name, place, (*within, condition))
            parts.append((condition, converted(entry, call.output.dtype)))
    return one_of(parts, call.output.dtype)


def _triangle(upper: bool) -> Rule:
    def rule(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
        beyond = place[-1] - place[-2] - size(call.arguments["diagonal"])
        kept = at_least(beyond) if upper else at_least(-beyond)
        dtype, parts = call.output.dtype, []
        if possible(*within, kept):
            parts.append((kept, entries.at(call.arguments["self"], place, (*within, kept))))
        parts.append((negated(kept), converted(((True, whole(0)),), dtype)))
        return one_of(parts, dtype)

    return rule


def _rounded_down(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """A whole number divided by a positive constant, rounded down."""
    numbers, divisors = (as_cases(_operand(entries, call, name, place, within)) for name in ("self", "other"))
    by = divisors[0][1]
    divisor = by.number if len(divisors) == 1 and isinstance(by, Linear) else None
    down = call.arguments.get("rounding_mode", "floor") == "floor"
    if call.output.dtype.is_floating_point or divisor is None or divisor < 1 or not down:
        raise NotKnown(f"{call.name} is called in a way that is not known")
    found: list[tuple[Condition, Number]] = []
    for condition, number in numbers:
        if not isinstance(number, Linear):
            raise NotKnown("it divides a fraction")
        found.append((condition, entries.quotient(number, divisor)))
    return tuple(found)


# --- sums --------------------------------------------------------------------------------------------------


def _sum(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """How many of the truth values in some dimensions are true: any number up to all of them."""
    source, dims = call.arguments["self"], call.arguments.get("dim")
    dims = range(source.dim()) if dims is None else dims
    lengths = [size(source.shape[dim]) for dim in dims]
    if source.dtype is not torch.bool or call.output.dtype.is_floating_point or not entries.with_data:
        raise NotKnown(f"it is made of data ({call.name})")
    if len(lengths) != 1:
        raise NotKnown(f"{call.name} is called in a way that is not known")
    return ((True, entries.count((id(call.output), place), lengths[0])),)


def _cumulative_sum(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """The sum of entries that are all one constant: the constant as often as there are entries."""
    if call.output.dtype.is_floating_point:
        raise NotKnown("it sums floating numbers up")
    source = call.arguments["self"]
    dim = call.arguments["dim"] % source.dim()
    step, end = entries.fresh(), place[dim]
    inner = (*within, at_least(step), at_least(end, step))
    entry = entries.at(source, (*place[:dim], step, *place[dim + 1 :]), inner)
    numbers = {number for condition, number in as_cases(entry) if possible(*inner, condition)}
    constants = [number.number for number in numbers if isinstance(number, Linear)]
    if len(numbers) != 1 or None in constants or not constants:
        raise NotKnown("it counts places that depend on the position (packing, padding)")
    return ((True, (end + 1) * constants[0]),)


def _unequal(one: Linear, other: Linear) -> Condition:
    return negated(equal(one, other))


_SAME = ("_to_copy", "clone", "alias", "detach", "lift_fresh", "lift_fresh_copy", "contiguous")
_RULES: dict[str, Rule] = {
    "arange": _arange,
    "cumsum": _cumulative_sum,
    "sum": _sum,
    "div": _rounded_down,
    "floor_divide": _rounded_down,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle(upper=False),
    "triu": _triangle(upper=True),
    "neg": _negative,
    "abs": _absolute,
    "add": _arithmetic(_add),
    "sub": _arithmetic(_subtract),
    "rsub": _arithmetic(_subtract, reverse=True),
    "mul": _arithmetic(_multiply),
    "eq": _comparison(equal, operator.eq),
    "ne": _comparison(_unequal, operator.ne),
    "ge": _comparison(at_least, operator.ge),
    "le": _comparison(lambda one, other: at_least(other, one), operator.le),
    "gt": _comparison(lambda one, other: at_least(one, other + 1), operator.gt),
    "lt": _comparison(lambda one, other: at_least(other, one + 1), operator.lt),
}
_RULES |= dict.fromkeys(_SAME, _same)
_RULES |= dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor"), _filled())
_RULES |= dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1))
_RULES |= dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0))
_RULES |= dict.fromkeys(("bitwise_and", "logical_and"), _logical(every))
_RULES |= dict.fromkeys(("bitwise_or", "logical_or"), _logical(some))
_RULES |= dict.fromkeys(("bitwise_xor", "logical_xor"), _logical(_exclusive))
_RULES |= dict.fromkeys(("bitwise_not", "logical_not"), _logical(negated))
RULES: dict[str, Rule] = {
    **{f"aten::{name}": rule for name, rule in (_RULES | PLACES).items()},
    "prims::iota": _arange,
    "prims::convert_element_type": _same,
}
"""By the name of an operator, without its overload."""
