"""Choose which saved values leave the device, beside what is computed again.

A candidate of the planner (a saved set, scheduled and swept) is a base. Of its saved values those born first leave,
as few as the bound asks for: they are away the longest, so their copies hide best. Every choice is swept with its
copies in place, and waits for what its links cannot hide; the fastest of all bases wins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memgraph.facts.actions import Offload
from memgraph.planner.candidate import Candidate, fastest, smallest
from memgraph.planner.queues import Clock, Tier, place
from memgraph.planner.schedule import Copies

if TYPE_CHECKING:
    from memgraph.facts.values import Value
    from memgraph.planner.solve import Planner

# How many bases are tried, and the windows: in largest moved values, all of them and none.
BASES = 8
WINDOWS = (math.inf, 8.0, 2.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Tiers:
    """Where values may go, fastest first.  min_bytes: smaller values stay, unless a rule sends them.

    notes: what the report says of the tiers.
    """

    tiers: tuple[Tier, ...] = ()
    min_bytes: int = 0
    notes: tuple[str, ...] = ()

    def named(self, name: str) -> Tier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


def _fill(
    values: Sequence[int], facts: Sequence[Value], tiers: Sequence[Tier], room: dict[str, float]
) -> list[tuple[int, Tier]]:
    """The first tier with room for each value, in this order; `room` is what is left afterwards."""
    chosen = []
    for i in values:
        size = facts[i].bytes
        tier = next((tier for tier in tiers if tier.room(size) <= room[tier.name]), None)
        if tier is not None:
            room[tier.name] -= tier.room(size)
            chosen.append((i, tier))
    return chosen


class Offloader:
    """Offload for one planner. It keeps the clocks of the bases, and nothing that depends on a bound."""

    def __init__(self, planner: Planner, tiers: Tiers) -> None:
        self.planner, self.facts, self.tiers = planner, planner.facts, tiers
        values, facts = planner.facts.values, planner.facts
        self._returned = {values[i].storage for i in facts.forward_outputs}
        self._pins = any(value.pinned(Offload) for value in values)
        self._clocks: dict[tuple[tuple[int, ...], Copies], Clock] = {}  # all else of a schedule follows from these
        self._stock: Candidate | None = None

    def pinned(self, base: Candidate) -> Candidate:
        """The base with what the rules send away gone, and nothing else."""
        if not self._pins:
            return base
        roots = self.plain() if base.stock else base
        chosen = self._assign(roots, ())
        return self._with(roots, chosen, math.inf) if chosen else base

    def best(self, bound: int) -> Candidate | None:
        """The fastest candidate found whose peak is at most `bound`; None where there is none."""
        best: Candidate | None = None
        for base in self._bases():
            if best is not None and base.seconds >= best.seconds:
                break
            found = self._under(base, bound)
            if found is not None:
                best = found if best is None else min(best, found, key=self._cheapest)
        return best

    def _cheapest(self, candidate: Candidate) -> tuple[float, int, int]:
        """Order by time; of two that take equally long, the one that moves less: disks wear."""
        moved = sum(self.facts.values[move.value].bytes for move in candidate.moves)
        return (round(candidate.seconds, 9), moved, candidate.peak)

    def smallest(self) -> Candidate | None:
        """The candidate with the lowest peak found: everything that may leave has left."""
        found = [
            self._with(base, self._assign(base, self.movable(base)), self._bytes(base, window))
            for base in self._bases()
            for window in (2.0, 0.0)
        ]
        return min(found, key=smallest, default=None)

    def _bases(self) -> list[Candidate]:
        """Candidates of the planner, fastest first; Inductor's own choice with roots in place of saved views."""
        pool = [self.plain()] + [candidate for _, candidate in self.planner.uniform()] * self.planner.recompute
        pool = sorted({id(candidate): candidate for candidate in pool}.values(), key=fastest)
        if len(pool) <= BASES:
            return pool
        step = (len(pool) - 1) / (BASES - 1)
        return [pool[round(n * step)] for n in range(BASES)]

    def plain(self) -> Candidate:
        """What Inductor saves, but of every saved view the value that owns the bytes: a view cannot leave by itself."""
        if self._stock is None:
            values = self.facts.values
            saved = set()
            for i in self.planner.stock.schedule.saved:
                root = values[i].storage
                moves = values[i].kind == "view" and values[root].movable and values[root].kind != "primal"
                saved.add(root if moves else i)
            self._stock = self.planner.candidate(frozenset(saved)) or self.planner.stock
        return self._stock

    def movable(self, base: Candidate) -> list[int]:
        """Saved values that may leave, first born first."""
        values, clock = self.facts.values, self._clock(base)
        shared = self._shared(base)
        found = [
            i
            for i in base.schedule.saved
            if values[i].movable
            and values[i].storage not in self._returned
            and i not in shared
            and i in clock.first_use
            and (values[i].bytes >= max(1, self.tiers.min_bytes) or self._rule(i) is not None)
        ]
        return sorted(found, key=clock.slot.__getitem__)

    def _shared(self, base: Candidate) -> set[int]:
        """Saved values of which a view is saved as well: their bytes would stay."""
        values, saved = self.facts.values, base.schedule.saved
        return {values[i].storage for i in saved if values[i].storage != i}

    def _rule(self, i: int) -> Tier | None:
        pin = self.facts.values[i].pin
        return self.tiers.named(pin.action.tier) if pin is not None and isinstance(pin.action, Offload) else None

    def _free(self, i: int) -> bool:
        """Whether neither a rule nor a tag keeps the value on the device."""
        pin = self.facts.values[i].pin
        return pin is None or self._rule(i) is not None

    def _assign(self, base: Candidate, values: Sequence[int]) -> list[tuple[int, Tier]]:
        """A tier for each value that one has room for: the fastest for those born last, which have the least time."""
        facts = self.facts.values
        room = {tier.name: math.inf if tier.capacity is None else tier.capacity for tier in self.tiers.tiers}
        chosen: list[tuple[int, Tier]] = []
        waiting = []
        for i in self.movable(base):
            rule = self._rule(i)
            if rule is not None and rule.room(facts[i].bytes) <= room[rule.name]:
                room[rule.name] -= rule.room(facts[i].bytes)
                chosen.append((i, rule))
            elif rule is None and i in values and self._free(i):
                waiting.append(i)
        # Where room is short those born first have it: they are away the longest, and lower the peak the most.
        open_to_all = [tier for tier in self.tiers.tiers if not tier.only_rules]
        admitted = [i for i, _ in _fill(waiting, facts, open_to_all[::-1], dict(room))]
        return chosen + _fill(admitted[::-1], facts, open_to_all, room)

    def _under(self, base: Candidate, bound: int) -> Candidate | None:
        """The base with as few of its first-born values gone as the bound asks for, in the widest window that fits."""
        movable = self.movable(base)
        everything = self._assign(base, movable)
        if self._with(base, everything, 0).peak > bound:  # nothing gives memory back earlier
            return None
        for window in WINDOWS:
            window = self._bytes(base, window)
            best = self._with(base, everything, window)
            if best.peak <= bound:
                break
        low, high = 0, len(movable) - 1
        while low <= high:
            middle = (low + high) // 2
            found = self._with(base, self._assign(base, movable[:middle]), window)
            if found.peak <= bound:
                best = min(best, found, key=self._cheapest)
                high = middle - 1
            else:
                low = middle + 1
        return best

    def _with(self, base: Candidate, chosen: Sequence[tuple[int, Tier]], window: float) -> Candidate:
        placed = place(self.facts, base.schedule, self._clock(base), chosen, window)
        found = self.planner.evaluate(placed.schedule)
        return dataclasses.replace(
            found, seconds=found.seconds + placed.stall, moves=placed.moves, stall=placed.stall, stock=False
        )

    def _bytes(self, base: Candidate, window: float) -> float:
        """A window in bytes from one in largest values."""
        if window == math.inf or window == 0:
            return window
        return window * max((self.facts.values[i].bytes for i in self.movable(base)), default=0)

    def _clock(self, base: Candidate) -> Clock:
        key = (base.schedule.saved, base.schedule.copies)
        if key not in self._clocks:
            self._clocks[key] = Clock(self.facts, base.schedule)
        return self._clocks[key]

    def without_room(self, chosen: Candidate, missed: bool) -> Iterator[tuple[Tier, int]]:
        """Tiers whose room was in the way, with the bytes that all that may go there need.

        missed: the choice is larger than its bound, so that everything should have gone. Else a tier was in the way
        where a value that stays finds no room.
        """
        values = self.facts.values
        moves = {move.value: move.tier for move in chosen.moves}
        movable = [i for i in self.movable(self.plain() if chosen.stock else chosen) if self._free(i)]
        for tier in self.tiers.tiers:
            fitting = [i for i in movable if self._rule(i) == tier or (self._rule(i) is None and not tier.only_rules)]
            room = {i: tier.room(values[i].bytes) for i in fitting if moves.get(i, tier.name) == tier.name}
            need, capacity = sum(room.values()), math.inf if tier.capacity is None else tier.capacity
            left = capacity - sum(size for i, size in room.items() if i in moves)
            if need > capacity if missed else any(size > left for i, size in room.items() if i not in moves):
                yield tier, need

    def refused(self, base: Candidate) -> Iterator[tuple[int, str]]:
        """Values that a rule sends away and that stay, with the reason."""
        values = self.facts.values
        moved = {move.value for move in base.moves}
        for i in base.schedule.saved:
            tier = self._rule(i)
            if tier is None or i in moved:
                continue
            if values[i].storage in self._returned:
                yield i, "the forward returns it, so its bytes stay on the device anyway"
            elif values[i].kind == "primal":
                yield i, "it is an input of the graph, which the caller holds"
            elif not values[i].movable:
                yield i, "it is a view, or its elements do not lie densely in its storage"
            elif i in self._shared(base):
                yield i, "a view of it is saved too, so its bytes stay on the device anyway"
            elif i not in self._clock(base).first_use:
                yield i, "the backward returns it as it is"
            else:
                yield i, f"the {tier.name} tier has no room left for it"
