"""Operators whose entries are those of their input, at another place."""

from __future__ import annotations

from typing import Any

import torch

from memgraph.base import compat
from memgraph.facts.masks.conditions import at_least, every, negated, possible
from memgraph.facts.masks.entries import (
    Cases,
    Entries,
    Entry,
    Place,
    Rule,
    Within,
    aligned,
    as_cases,
    converted,
    one_of,
)
from memgraph.facts.masks.linear import Linear, size, whole
from memgraph.facts.masks.trace import Call, NotKnown


def _unsqueeze(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    dim = call.arguments["dim"] % call.output.dim()
    return entries.at(call.arguments["self"], (*place[:dim], *place[dim + 1 :]), within)


def _expand(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    source = call.arguments["self"]
    return entries.at(source, aligned(place, source.shape), within)


def _repeat(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """Repeats of dimensions of length 1."""
    source, times = call.arguments["self"], call.arguments["repeats"]
    last = times[len(times) - source.dim() :]
    if not all(_is_one(length) or _is_one(count) for length, count in zip(source.shape, last, strict=True)):
        raise NotKnown(f"{call.name} repeats places")
    return entries.at(source, aligned(place, source.shape), within)


def _reshape(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """Views that only add or take away dimensions of length 1."""
    source = call.arguments["self"]
    old = [dim for dim, length in enumerate(source.shape) if not _is_one(length)]
    new = [dim for dim, length in enumerate(call.output.shape) if not _is_one(length)]
    lengths = [(source.shape[one], call.output.shape[other]) for one, other in zip(old, new, strict=False)]
    if len(old) != len(new) or not all(compat.same_size(one, other) for one, other in lengths):
        raise NotKnown(f"{call.name} joins or splits dimensions")
    found = dict(zip(old, (place[dim] for dim in new), strict=True))
    return entries.at(source, tuple(found.get(dim, whole(0)) for dim in range(source.dim())), within)


def _is_one(length: Any) -> bool:
    return isinstance(length, int) and length == 1


def _permute(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    rank = call.output.dim()
    order = [dim % rank for dim in call.arguments["dims"]]
    found = dict(zip(order, place, strict=True))
    return entries.at(call.arguments["self"], tuple(found[dim] for dim in range(rank)), within)


def _transpose(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    rank = call.output.dim()
    found = list(place)
    if rank > 1:
        one, other = call.arguments.get("dim0", 0) % rank, call.arguments.get("dim1", 1) % rank
        found[one], found[other] = found[other], found[one]
    return entries.at(call.arguments["self"], tuple(found), within)


def _slice(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    source, given = call.arguments["self"], call.arguments
    dim = given["dim"] % source.dim()
    start = _start(0 if given["start"] is None else given["start"], source.shape[dim])
    if not isinstance(given["step"], int):
        raise NotKnown("it is cut in steps of a symbol")
    moved = start + place[dim] * given["step"]
    return entries.at(source, (*place[:dim], moved, *place[dim + 1 :]), within)


def _start(start: Any, length: Any) -> Linear:
    """The first place of a slice."""
    if isinstance(start, int) and isinstance(length, int):
        return whole(slice(start, None).indices(length)[0])
    if isinstance(start, int) and start >= 0:
        return whole(start)
    raise NotKnown("it is cut at a place that is a symbol, or counted from the end")


def _select(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    source, index = call.arguments["self"], call.arguments["index"]
    dim = call.arguments["dim"] % source.dim()
    if not isinstance(index, int):
        raise NotKnown("it picks a place that is a symbol")
    chosen = whole(index) if index >= 0 else size(source.shape[dim]) + index
    return entries.at(source, (*place[:dim], chosen, *place[dim:]), within)


def _concatenate(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    tensors = [part for part in call.arguments["tensors"] if part.dim() == call.output.dim()]
    dim = call.arguments["dim"] % call.output.dim()
    parts: list[tuple[Any, Entry]] = []
    begin = whole(0)
    for part in tensors:
        end = begin + size(part.shape[dim])
        here = (at_least(place[dim], begin), at_least(end, place[dim] + 1))
        if possible(*within, *here):
            moved = (*place[:dim], place[dim] - begin, *place[dim + 1 :])
            parts.append((every(*here), entries.at(part, moved, (*within, *here))))
        begin = end
    return one_of(parts, call.output.dtype)


def _pad(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """Places that are added, or taken away, at the ends of dimensions, the last dimension first."""
    source, pads = call.arguments["self"], call.arguments["pad"]
    moved, here = list(place), []
    for n in range(len(pads) // 2):
        dim, low = source.dim() - 1 - n, pads[2 * n]
        if not isinstance(low, int):
            raise NotKnown("it is padded by a symbol")
        moved[dim] = place[dim] - low
        here += [at_least(moved[dim]), at_least(size(source.shape[dim]), moved[dim] + 1)]
    parts: list[tuple[Any, Entry]] = []
    if possible(*within, *here):
        parts.append((every(*here), entries.at(source, tuple(moved), (*within, *here))))
    filled = entries.cases(call.arguments["value"], (), within)
    parts.append((negated(every(*here)), converted(filled, call.output.dtype)))
    return one_of(parts, call.output.dtype)


def _index(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    """Picks by tensors of places: `x[batch, None, places]`."""
    source, indices = call.arguments["self"], list(call.arguments["indices"])
    indices += [None] * (source.dim() - len(indices))
    tensors = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        raise NotKnown("it picks by truth values")
    rank = max((index.dim() for index in tensors), default=0)
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    picked, kept = place[first : first + rank], iter((*place[:first], *place[first + rank :]))
    found: list[Cases] = []
    for dim, index in enumerate(indices):
        if index is None:
            found.append(((True, next(kept)),))
        else:
            chosen = as_cases(entries.at(index, aligned(picked, index.shape), within))
            found.append(_places(chosen, size(source.shape[dim]), within))
    return _at_cases(entries, source, found, within)


def _index_select(entries: Entries, call: Call, place: Place, within: Within) -> Entry:
    source, index = call.arguments["self"], call.arguments["index"]
    dim = call.arguments["dim"] % source.dim()
    found: list[Cases] = [((True, part),) for part in place]
    chosen = as_cases(entries.at(index, aligned((place[dim],), index.shape), within))
    found[dim] = _places(chosen, size(source.shape[dim]), within)
    return _at_cases(entries, source, found, within)


def _places(cases: Cases, length: Linear, within: Within) -> Cases:
    """Places in a dimension, counted from its start.  Raises NotKnown for one that may lie outside."""
    found: list[Any] = []
    for condition, number in cases:
        if not isinstance(number, Linear):
            raise NotKnown("it picks by fractions")
        low, high = at_least(number), at_least(-1, number)
        if possible(*within, condition, at_least(number, length)):
            raise NotKnown("it picks places that may lie outside")
        if possible(*within, condition, at_least(-length - 1, number)):
            raise NotKnown("it picks places that may lie outside")
        found += [(every(condition, low), number), (every(condition, high), number + length)]
    return tuple((condition, number) for condition, number in found if possible(*within, condition))


def _at_cases(entries: Entries, source: torch.Tensor, places: list[Cases], within: Within) -> Entry:
    """What stands at a place each of whose parts has cases."""
    chosen: list[tuple[Any, Place]] = [(True, ())]
    for cases in places:
        chosen = [
            (joint, (*start, part))  # type: ignore[arg-type]
            for condition, start in chosen
            for case, part in cases
            if possible(*within, joint := every(condition, case))
        ]
    parts = [(condition, entries.at(source, place, (*within, condition))) for condition, place in chosen]
    return one_of(parts, source.dtype)


PLACES: dict[str, Rule] = {
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "repeat": _repeat,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "slice": _slice,
    "select": _select,
    "cat": _concatenate,
    "constant_pad_nd": _pad,
    "index": _index,
    "index_select": _index_select,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "reshape": _reshape,
    "_reshape_alias": _reshape,
    "squeeze": _reshape,
}
"""By the name of an operator, without namespace and overload."""
