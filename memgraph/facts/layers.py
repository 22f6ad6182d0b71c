"""Layers that do the same: stretches of a graph's order with equal operators that read each other alike.

The problem: cut the order of n operators into stretches so that equal ones cover much of it with few different ones.
The best grammar of a sequence is NP-hard to find, and a suffix tree finds repeats that overlap and cross every border.
A model repeats itself in order, so one operator that runs once a layer tells where layers end:

    1. For each kind of operator: cut behind each of its runs, behind every second one, and so on. Prefix hashes compare
       the stretches in constant time each, so all kinds together take time linear in the operators.
    2. Of the kinds that leave nearly the least to compile, take the one where the fewest bytes cross a border that
       would not be in memory anyway: behind a matrix product rather than between two operators that fuse.
    3. Within a class, compare what each operator reads, and what is read outside of the stretch.
    4. What is left between the stretches is searched again: an encoder and a decoder have layers of two kinds.

Classes of layers may take turns (five with a sliding window, one without). The first and the last layer usually stand
apart, because they hold the embedding and the head. The oracle in the tests is a comparison of all pairs of stretches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from memgraph.facts.steps import Step

# Equal layers that are worth a body. A stretch ends within a layer, so four equal layers make three of them.
LEAST = 3
# The fewest operators of a body, and how often what is left is searched at most.
SMALLEST, ROUNDS = 12, 8
# Classes that save less than this share of the operators together are not worth their calls.
SHARE = 0.05
# How many times a layer may run the kind of operator that it ends with.
OFTEN = (1, 2, 3, 4, 6, 8)
# How many cuttings, the cheapest first, have their layers compared by what they read.
TRIED = 6
# What a call and each value that crosses a border cost, as bytes that are written and read again.
CALL, OPERAND = 1 << 16, 1 << 10

_PRIME, _BASE = (1 << 61) - 1, 1_000_003


@dataclasses.dataclass(frozen=True)
class Alone:
    """A stretch that is in no class."""

    first: str
    """The name of its first operator."""
    last: str
    """The name of its last operator."""
    count: int
    """The number of its operators."""
    reason: str


@dataclasses.dataclass(frozen=True)
class Layers:
    """The equal layers of one graph."""

    classes: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """For each class, for each of its layers, the names of its operators, which correspond place by place."""
    alone: tuple[Alone, ...] = ()
    """What stays outside, in order."""
    operators: int = 0
    """The number of operators that the graph has."""

    @property
    def count(self) -> int:
        """Layers in all classes."""
        return sum(map(len, self.classes))

    @property
    def left(self) -> int:
        """Operators that have to be compiled: those of one layer of each class, and those outside."""
        return self.operators - sum((len(layers) - 1) * len(layers[0]) for layers in self.classes)


@dataclasses.dataclass(frozen=True, order=True)
class _Stretch:
    first: int
    end: int
    """The place behind its last operator."""

    def __len__(self) -> int:
        return self.end - self.first


@dataclasses.dataclass(frozen=True)
class _Cutting:
    """Stretches that end with one kind of operator."""

    stretches: tuple[_Stretch, ...] = ()
    saved: int = 0
    """Operators that need not be compiled, if layers are compared only by what their operators do."""
    largest: int = 0
    """Operators of a layer of the largest class."""
    cost: int = 0
    """Bytes that cross, and calls as bytes."""


def equal_layers(steps: Sequence[Step], least: int = LEAST) -> Layers:
    """The classes of at least `least` equal layers, in the order of their first layers."""
    return _Search(steps, least).run()


class _Search:
    def __init__(self, steps: Sequence[Step], least: int) -> None:
        self.steps, self.least = steps, least
        self.hashes, self.powers = [0], [1]
        for step in steps:
            self.hashes.append((self.hashes[-1] * _BASE + step.does + 1) % _PRIME)
            self.powers.append(self.powers[-1] * _BASE % _PRIME)
        self.last_reader = _last_readers(steps)
        self.crossing = _crossing(steps)

    def run(self) -> Layers:
        classes: list[tuple[_Stretch, ...]] = []
        reasons: dict[_Stretch, str] = {}
        fixed = self.fixed()
        left = list(_without([_Stretch(0, len(self.steps))], sorted(fixed)))
        for _ in range(ROUNDS):
            stretches, found = self.best(left)
            if not found:
                break
            reasons = reasons or self.reasons(stretches, found)
            classes += found
            left = list(_without(left, sorted(itertools.chain.from_iterable(found))))
        classes.sort()
        names = tuple(tuple(tuple(map(self._name, range(s.first, s.end))) for s in found) for found in classes)
        left = sorted([*left, *fixed])
        return Layers(names, tuple(self.alone(left, reasons | fixed)), len(self.steps))

    def _name(self, place: int) -> str:
        return self.steps[place].name

    def fixed(self) -> dict[_Stretch, str]:
        """The stretches that can be in no body, and why: no layer goes on behind one."""
        found: dict[_Stretch, str] = {}
        for reason, run in itertools.groupby(range(len(self.steps)), key=lambda place: self.steps[place].fixed):
            places = list(run)
            if reason:
                found[_Stretch(places[0], places[-1] + 1)] = f"{self._name(places[0])} {reason}"
        return found

    def best(self, left: Sequence[_Stretch]) -> tuple[tuple[_Stretch, ...], list[tuple[_Stretch, ...]]]:
        """The stretches of the best cutting of what is left, and the classes among them; none where none pays."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place in itertools.chain.from_iterable(range(one.first, one.end) for one in left):
            places[self.steps[place].does].append(place)
        ends = [runs[often - 1 :: often] for runs in places.values() for often in OFTEN]
        found = [self.cut(left, some) for some in ends if len(some) >= self.least]
        most = max(found, key=lambda cutting: cutting.saved, default=_Cutting())
        worth = max(SMALLEST, int(SHARE * len(self.steps)))
        enough = max(most.saved - most.largest, most.saved // 2, worth)
        cheapest = sorted((one for one in found if one.saved >= enough), key=lambda one: (one.cost, -one.saved))
        best: tuple[tuple[_Stretch, ...], list[tuple[_Stretch, ...]]] = ((), [])
        for cutting in cheapest[:TRIED]:
            classes = self.classes(cutting.stretches)
            if _saved(classes) > _saved(best[1]):
                best = (cutting.stretches, classes)
            if _saved(classes) >= enough:  # in the classes as in the hashes
                break
        return best if _saved(best[1]) >= worth else ((), [])

    def cut(self, left: Sequence[_Stretch], ends: Sequence[int]) -> _Cutting:
        """What is left, cut behind some places."""
        stretches, rest = [], iter(ends)
        end = next(rest, None)
        for one in left:
            first = one.first
            while end is not None and end < one.end:
                behind = self.behind_parts(end + 1, one.end)
                stretches.append(_Stretch(first, behind))
                first, end = behind, next(rest, None)
            if first < one.end:
                stretches.append(_Stretch(first, one.end))
        groups: defaultdict[tuple[int, int], list[_Stretch]] = defaultdict(list)
        for stretch in stretches:
            if len(stretch) >= SMALLEST:
                groups[self._hash(stretch), len(stretch)].append(stretch)
        repeated = [group for group in groups.values() if len(group) >= self.least]
        cost = sum(CALL + self.crossing[one.end] for group in repeated for one in group)
        largest = max(repeated, key=len, default=[_Stretch(0, 0)])
        return _Cutting(tuple(stretches), _saved(repeated), len(largest[0]), cost)

    def behind_parts(self, place: int, end: int) -> int:
        """The first place from `place` on where no part of an operator's several values stands."""
        while place < end and self.steps[place].part:
            place += 1
        return place

    def _hash(self, stretch: _Stretch) -> int:
        return (self.hashes[stretch.end] - self.hashes[stretch.first] * self.powers[len(stretch)]) % _PRIME

    def classes(self, stretches: Sequence[_Stretch]) -> list[tuple[_Stretch, ...]]:
        """The classes among some stretches, by all that makes layers equal."""
        groups: defaultdict[tuple, list[_Stretch]] = defaultdict(list)
        likely = Counter((self._hash(one), len(one)) for one in stretches)
        for one in stretches:
            often = likely[self._hash(one), len(one)] >= self.least and len(one) >= SMALLEST
            if often and self.torn(one) is None:
                groups[self.structure(one)].append(one)
        return [tuple(group) for group in groups.values() if len(group) >= self.least]

    def torn(self, stretch: _Stretch) -> int | None:
        """An operator whose several values are made on one side of the stretch's border and taken on the other."""
        for place in range(stretch.first, stretch.end):
            step = self.steps[place]
            if step.several and self.last_reader[place] >= stretch.end:
                return place
            if any(0 <= read < stretch.first and self.steps[read].several for read in step.reads):
                return place
        return None

    def structure(self, stretch: _Stretch) -> tuple:
        """What each operator does, what it reads, and whether it is read outside: equal for equal layers."""
        operands: dict[int, int] = {}
        lines = []
        for place in range(stretch.first, stretch.end):
            step = self.steps[place]
            reads = tuple(
                read - stretch.first if read >= stretch.first else -1 - operands.setdefault(read, len(operands))
                for read in step.reads
            )
            lines.append((step.does, reads, step.returned or self.last_reader[place] >= stretch.end))
        return tuple(lines)

    def reasons(self, stretches: Sequence[_Stretch], classes: Sequence[tuple[_Stretch, ...]]) -> dict[_Stretch, str]:
        """By stretch that is in no class, why."""
        inside = set(itertools.chain.from_iterable(classes))
        return {one: self.reason(one, max(classes, key=len)[0]) for one in stretches if one not in inside}

    def reason(self, one: _Stretch, model: _Stretch) -> str:
        """Why a stretch is not like a layer of a class."""
        if (torn := self.torn(one)) is not None:
            return f"{self._name(torn)} belongs to several values, of which others lie outside"
        if self._hash(one) == self._hash(model) and len(one) == len(model):
            return self._difference(one, model)
        for mine, other in zip(range(one.first, one.end), range(model.first, model.end), strict=False):
            if self.steps[mine].does != self.steps[other].does:
                has = f"{self._name(mine)} is {self.steps[mine].said}"
                return f"{has}, where {self._name(other)} of another layer is {self.steps[other].said}"
        return f"it has {len(one)} operators, and another layer has {len(model)}"

    def _difference(self, one: _Stretch, model: _Stretch) -> str:
        mine, other = self.structure(one), self.structure(model)
        place = next((n for n, lines in enumerate(zip(mine, other, strict=True)) if lines[0] != lines[1]), None)
        if place is None:
            return f"fewer than {self.least} layers are like it"
        name, twin = self._name(one.first + place), self._name(model.first + place)
        if mine[place][2] != other[place][2]:
            return f"{name} is read {'outside of' if mine[place][2] else 'within'} its layer alone, unlike {twin}"
        return f"{name} reads another value of its layer than {twin}"

    def alone(self, left: Sequence[_Stretch], reasons: dict[_Stretch, str]) -> Iterator[Alone]:
        """What stays outside, by the stretches of the first search, and without what later ones found in them."""
        for one in sorted(reasons):
            inside = [rest for rest in left if one.first < rest.end and rest.first < one.end]
            for rest in inside:
                first, end = max(one.first, rest.first), min(one.end, rest.end)
                yield Alone(self._name(first), self._name(end - 1), end - first, reasons[one])


def _saved(classes: Iterable[Sequence[_Stretch]]) -> int:
    """Operators that need not be compiled."""
    return sum((len(layers) - 1) * len(layers[0]) for layers in classes)


def _without(left: Sequence[_Stretch], taken: Sequence[_Stretch]) -> Iterator[_Stretch]:
    """What is left of some stretches without others that lie within them; both are sorted."""
    rest = iter(taken)
    next_taken = next(rest, None)
    for one in left:
        first = one.first
        while next_taken is not None and next_taken.end <= one.end:
            if first < next_taken.first:
                yield _Stretch(first, next_taken.first)
            first, next_taken = next_taken.end, next(rest, None)
        if first < one.end:
            yield _Stretch(first, one.end)


def _last_readers(steps: Sequence[Step]) -> list[int]:
    """By place of a step, the place of the last one that reads it; -1 for none."""
    last = [-1] * len(steps)
    for place, step in enumerate(steps):
        for read in step.reads:
            if read >= 0:
                last[read] = place
    return last


def _crossing(steps: Sequence[Step]) -> list[int]:
    """By place, the cost of a border before it: the bytes that are written for it, and OPERAND for each value."""
    last = list(range(len(steps)))
    for place, step in enumerate(steps):
        for read in step.reads:
            if read >= 0:
                owner = read if steps[read].shows < 0 else steps[read].shows
                last[owner] = place
    change = [0] * (len(steps) + 2)
    for place, step in enumerate(steps):
        if last[place] > place:
            change[place + 1] += step.bytes + OPERAND
            change[last[place] + 1] -= step.bytes + OPERAND
    return list(itertools.accumulate(change))
