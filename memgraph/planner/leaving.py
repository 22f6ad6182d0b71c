"""Which saved values may leave the device, for which tier, and why others stay.

A value leaves from a base: a candidate of the planner, whose schedule says what is saved, when it is made, and when the
backward reads it. Which values are to leave is decided elsewhere (`planner/offload.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from memgraph.facts.actions import Offload
from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate
from memgraph.planner.copies import Copies
from memgraph.planner.queues import Clock, Tier


@dataclasses.dataclass(frozen=True)
class Tiers:
    """The tiers of one compilation."""

    tiers: tuple[Tier, ...] = ()
    """Fastest first."""
    min_bytes: int = 0
    """Smaller values stay, unless a rule sends them."""
    notes: tuple[str, ...] = ()
    """Sentences about the tiers for the report."""

    def named(self, name: str) -> Tier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


class _Room:
    """The bytes that are left in each tier."""

    def __init__(self, left: dict[str, float]) -> None:
        self._left = dict(left)

    @classmethod
    def of(cls, tiers: Iterable[Tier]) -> _Room:
        return cls({tier.name: math.inf if tier.capacity is None else tier.capacity for tier in tiers})

    def copy(self) -> _Room:
        return _Room(self._left)

    def take(self, tier: Tier, size: int) -> bool:
        """Give a value of `size` bytes its room, if there is any."""
        needed = tier.room(size)
        if needed > self._left[tier.name]:
            return False
        self._left[tier.name] -= needed
        return True


class Leaving:
    """The values of one joint graph that may leave. It keeps the clocks of the bases."""

    def __init__(self, facts: JointFacts, tiers: Tiers) -> None:
        self.facts, self.tiers = facts, tiers
        self._returned = {facts.values[i].storage for i in facts.forward_outputs}
        self._clocks: dict[tuple[tuple[int, ...], Copies], Clock] = {}  # all else of a schedule follows from these

    def movable(self, base: Candidate) -> list[int]:
        """Saved values that may leave, first born first."""
        values, clock = self.facts.values, self.clock(base)
        shared = self._shared(base)
        found = [
            i
            for i in base.schedule.saved
            if values[i].movable
            and values[i].storage not in self._returned
            and i not in shared
            and i in clock.first_use
            and (values[i].bytes >= max(1, self.tiers.min_bytes) or self.rule(i) is not None)
        ]
        return sorted(found, key=clock.slot.__getitem__)

    def _shared(self, base: Candidate) -> set[int]:
        """Saved values of which a view is saved as well: their bytes would stay."""
        values, saved = self.facts.values, base.schedule.saved
        return {values[i].storage for i in saved if values[i].storage != i}

    def rule(self, i: int) -> Tier | None:
        """The tier to which a rule sends the value."""
        pin = self.facts.values[i].pin
        return self.tiers.named(pin.action.tier) if pin is not None and isinstance(pin.action, Offload) else None

    def free(self, i: int) -> bool:
        """Whether neither a rule nor a tag keeps the value on the device."""
        pin = self.facts.values[i].pin
        return pin is None or self.rule(i) is not None

    def assign(self, base: Candidate, values: Sequence[int]) -> list[tuple[int, Tier]]:
        """A tier for each value that one has room for: the fastest for those born last, which have the least time."""
        facts = self.facts.values
        room = _Room.of(self.tiers.tiers)
        chosen: list[tuple[int, Tier]] = []
        waiting = []
        for i in self.movable(base):
            rule = self.rule(i)
            if rule is not None and room.take(rule, facts[i].bytes):
                chosen.append((i, rule))
            elif rule is None and i in values and self.free(i):
                waiting.append(i)
        # If room is short, values born first get it: they are away the longest, and lower the peak the most.
        open_to_all = [tier for tier in self.tiers.tiers if not tier.only_rules]
        admitted = [i for i, _ in self._place(waiting, open_to_all[::-1], room.copy())]
        return chosen + self._place(admitted[::-1], open_to_all, room)

    def _place(self, values: Sequence[int], tiers: Sequence[Tier], room: _Room) -> list[tuple[int, Tier]]:
        """The first tier with room for each value, in this order; values without room are left out."""
        sizes = [(i, self.facts.values[i].bytes) for i in values]
        found = [(i, next((tier for tier in tiers if room.take(tier, size)), None)) for i, size in sizes]
        return [(i, tier) for i, tier in found if tier is not None]

    def clock(self, base: Candidate) -> Clock:
        key = (base.schedule.saved, base.schedule.copies)
        if key not in self._clocks:
            self._clocks[key] = Clock(self.facts, base.schedule)
        return self._clocks[key]

    def without_room(self, base: Candidate, chosen: Candidate, missed: bool) -> Iterator[tuple[Tier, int]]:
        """Tiers whose capacity has kept values on the device, with the bytes that all values that may go there need.

        base: of the choice, without copies.  missed: whether the choice is larger than its bound. Then everything
        should have gone, and the tiers are those that cannot hold everything; else those that have no room for a value
        that stays.
        """
        values = self.facts.values
        moves = {move.value: move.tier for move in chosen.moves}
        movable = [i for i in self.movable(base) if self.free(i)]
        for tier in self.tiers.tiers:
            fitting = [i for i in movable if self.rule(i) == tier or (self.rule(i) is None and not tier.only_rules)]
            room = {i: tier.room(values[i].bytes) for i in fitting if moves.get(i, tier.name) == tier.name}
            need, capacity = sum(room.values()), math.inf if tier.capacity is None else tier.capacity
            left = capacity - sum(size for i, size in room.items() if i in moves)
            in_the_way = need > capacity if missed else any(size > left for i, size in room.items() if i not in moves)
            if in_the_way:
                yield tier, need

    def refused(self, base: Candidate) -> Iterator[tuple[int, str]]:
        """Values that a rule sends away and that stay, with the reason."""
        values = self.facts.values
        moved = {move.value for move in base.moves}
        for i in base.schedule.saved:
            tier = self.rule(i)
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
            elif i not in self.clock(base).first_use:
                yield i, "the backward returns it as it is"
            else:
                yield i, f"the {tier.name} tier has no room left for it"
