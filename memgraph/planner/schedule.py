"""From a set of saved values to two programs: what the forward runs, and the backward with its recomputation.

Problem: given the values that cross to the backward, in which order does the backward compute the others again?

    forward    x ── f0 ── f1 ── f2 ── f3           saved: f1
    backward   b3 needs f3:  f2, f3, b3            a value is computed again right before its first use, with all that
               b2 needs f2:  b2                    it needs, in the order of the forward
               b1 needs f1:  b1

Where another region of the backward needs a recomputed value too, it may be computed once more, so that it does not
stay live in between (copies.py).

Why not a library: torch's partitioner orders a backward too, but as a graph, with one recomputation a value and none of
the bytes. Here it is a list of numbers that the sweep walks, made some hundred times for one plan.

Algorithm: walk the backward in Inductor's order; before each operator, a depth-first search from its missing inputs
down to what is at hand, emitted in the order of the forward.

Oracle: tests/planner/test_schedule.py holds that every read was computed before, for random graphs; those of
tests/properties/test_plans.py run the schedule, bit for bit against the unplanned step.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.facts.values import Value
from memgraph.planner.copies import Copies, copied_until

Copy = tuple[int, int]
"""A value of the backward, and which of its computations there: 0 is the first, and the only one of most values."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A saved set with the two programs that follow from it."""

    saved: tuple[int, ...]
    """Values that cross to the backward, in the order of the graph."""
    backward_steps: tuple[Copy, ...]
    """What the backward computes, in order."""
    backward_reads: tuple[tuple[Copy, ...], ...]
    """What each step of the backward reads, in the order of its inputs."""
    forward: Program
    """What the forward runs, for the sweep."""
    backward: Program
    """What the backward runs, for the sweep."""
    seconds: tuple[float, ...]
    """Predicted time of recomputation, by region."""
    recomputed: frozenset[int]
    """Values that the backward computes again."""
    copies: Copies
    """Which values may be computed more than once."""

    def settled(self) -> tuple[Copy, ...]:
        """The steps of the backward that are written to memory whatever reads them."""
        program = self.backward
        slots = (slot for slot in range(program.inputs, len(program.values)) if slot not in program.loads)
        return tuple(step for slot, step in zip(slots, self.backward_steps, strict=True) if slot in program.settled)


class Unschedulable(Exception):
    """A saved set from which the backward cannot be computed: a value that must not run twice is missing."""


def make_schedule(
    facts: JointFacts, saved: Iterable[int], copies: Copies = Copies.OF_HELD, *, settle: bool = True
) -> Schedule:
    """Order the backward for a saved set; saved values that nothing needs are dropped.

    settle: sums of a gradient are written to memory one by one, and so is a mask that is computed again and read by
    several steps. By itself Inductor adds products one by one, and makes one kernel of all other additions, until which
    all that they add stays live; and of a mask it writes the random numbers, which take more bytes. So is a value that
    an operator reads in a larger size: Inductor would write it in that.

    Raises Unschedulable.
    """
    walk = _Backward(facts, saved, copies)
    for position, operator in enumerate(facts.backward):
        walk.run(operator, position)
    walk.provide(facts.backward_outputs)
    crossing = walk.crossing()
    return Schedule(
        saved=crossing,
        backward_steps=tuple(walk.steps),
        backward_reads=tuple(walk.reads),
        forward=forward_program(facts, crossing),
        backward=backward_program(facts, crossing, walk.steps, walk.reads, settle),
        seconds=tuple(walk.seconds),
        recomputed=frozenset(walk.newest),
        copies=Copies(copies),
    )


class _Backward:
    """The steps of a backward, as they are appended operator by operator."""

    def __init__(self, facts: JointFacts, saved: Iterable[int], copies: Copies) -> None:
        self.facts, self.values = facts, facts.values
        held = set(saved)
        self.until = copied_until(facts, held, copies)
        self.held = held.union(facts.primals, facts.tangents)
        """What is there from the start: saved values and inputs."""
        self.there = set(self.held)
        """What is held, and the operators of the backward that have run."""
        self.ours = set(facts.backward)
        self.by_region: dict[tuple[int, int], int] = {}
        """(value, region): the copy that was computed for this region."""
        self.newest: dict[int, int] = {}
        """The copy of each recomputed value that was computed last."""
        self.steps: list[Copy] = []
        self.reads: list[tuple[Copy, ...]] = []
        self.seconds = [0.0] * len(facts.region_names)

    def run(self, operator: int, position: int) -> None:
        """Append one operator of the backward, and before it whatever it needs."""
        value, there = self.values[operator], self.there
        reads = [(i, 0) if i in there else self._read(i, value.region, position) for i in value.inputs]
        self.steps.append((operator, 0))
        self.reads.append(tuple(reads))
        there.add(operator)

    def provide(self, outputs: Sequence[int]) -> None:
        """Append what the backward returns and did not compute: a gradient may be a forward value itself."""
        last = len(self.facts.backward) - 1
        region = self.values[self.facts.backward[last]].region if last >= 0 else 0
        for i in outputs:
            if i not in self.ours:
                self._read(i, region, max(last, 0))

    def crossing(self) -> tuple[int, ...]:
        """The held forward values that a step reads or that the backward returns, in order."""
        wanted = {i for reads in self.reads for i, _ in reads}.union(self.facts.backward_outputs)
        return tuple(sorted(i for i in wanted & self.held if self.values[i].kind != "tangent"))

    def _read(self, i: int, region: int, position: int) -> Copy:
        """The copy of a value that a step of this region reads, computed now if none is at hand."""
        found = self._at_hand(i, region, position)
        if found is None:
            self._recompute(i, region, position)
            found = (i, self.newest[i])
        return found

    def _at_hand(self, i: int, region: int, position: int) -> Copy | None:
        """The copy of a value that a step of this region may read; None if there is none yet."""
        if i in self.there:
            return (i, 0)
        copy = self.by_region.get((i, region))
        if copy is None and self.until[i] < position:
            copy = self.newest.get(i)
        return None if copy is None else (i, copy)

    def _recompute(self, i: int, region: int, position: int) -> None:
        """Append the recomputation of a value and of all that it needs, in the order of the forward."""
        there = self.there
        for j in sorted(self._missing(i, region, position)):
            value = self.values[j]
            reads = [(k, 0) if k in there else self._read(k, region, position) for k in value.inputs]
            copy = self.newest.get(j, -1) + 1
            self.steps.append((j, copy))
            self.reads.append(tuple(reads))
            self.by_region[j, region] = self.newest[j] = copy
            self.seconds[region] += value.seconds

    def _missing(self, i: int, region: int, position: int) -> set[int]:
        """A value and all that has to be computed before it.  Raises Unschedulable."""
        values, there = self.values, self.there
        pending, missing = [i], set()
        while pending:
            j = pending.pop()
            if j in missing:
                continue
            if j in self.ours:
                raise Unschedulable(f"{values[j].name} is read before the backward computes it")
            if values[j].fixed:
                raise Unschedulable(f"{values[j].name} {values[j].fixed} and is not saved")
            missing.add(j)
            pending += [k for k in values[j].inputs if k not in there and self._at_hand(k, region, position) is None]
        return missing


def forward_program(facts: JointFacts, crossing: tuple[int, ...]) -> Program:
    """What the forward runs when the values in `crossing` are saved."""
    values, inputs = facts.values, facts.primals
    kept = {*facts.forward_outputs, *crossing}
    always = facts.always_run
    needed = always | facts.with_inputs(crossing, always)
    run = [i for i in facts.forward if i in needed]
    order = (*inputs, *run)
    slot = {i: s for s, i in enumerate(order)}
    at = slot.__getitem__
    return Program(
        values=order,
        reads=((),) * len(inputs) + tuple([tuple(map(at, values[i].inputs)) for i in run]),
        inputs=len(inputs),
        outputs=frozenset(slot[i] for i in kept if i in slot),
        owned=frozenset(),
        dropped=_dropped(facts, crossing, slot),
    )


def backward_program(
    facts: JointFacts,
    crossing: tuple[int, ...],
    steps: Sequence[Copy],
    reads: Sequence[tuple[Copy, ...]],
    settle: bool,
) -> Program:
    """What the backward runs with these steps.  settle: as of `make_schedule`."""
    held = set(crossing)
    inputs = [*crossing, *(i for i in facts.primals if i not in held), *facts.tangents]
    slot: dict[Copy, int] = {(i, 0): s for s, i in enumerate(inputs)}
    slot.update(zip(steps, range(len(inputs), len(inputs) + len(steps)), strict=True))
    at = slot.__getitem__
    return Program(
        values=tuple(inputs) + tuple([i for i, _ in steps]),
        reads=((),) * len(inputs) + tuple([tuple(map(at, step)) for step in reads]),
        inputs=len(inputs),
        outputs=frozenset(slot[i, 0] for i in facts.backward_outputs if (i, 0) in slot),
        owned=_owned(facts, inputs),
        settled=frozenset(slot[step] for step in _settled(facts, steps, reads, settle)),
    )


def _settled(
    facts: JointFacts, steps: Sequence[Copy], reads: Sequence[tuple[Copy, ...]], settle: bool
) -> Iterator[Copy]:
    """The steps that are written to memory whatever reads them."""
    values = facts.values
    masks = {step for step in steps if values[step[0]].masks} if settle else set()
    readers = Counter(read for step in reads for read in step if read in masks) if masks else Counter()
    for step in steps:
        value = values[step[0]]
        adds = value.accumulates and (settle or any(_is_product(values, j) for j in value.inputs))
        if adds or (settle and value.expanded) or readers[step] > 1:
            yield step


def _owned(facts: JointFacts, inputs: Sequence[int]) -> frozenset[int]:
    """Input slots of the backward whose storage nobody else holds: it goes when its last reader has run."""
    values = facts.values
    if facts.retained:
        return frozenset()
    others = facts.held_outputs
    return frozenset(
        slot
        for slot, i in enumerate(inputs)
        if values[i].kind not in ("primal", "tangent")
        and values[values[i].storage].kind != "primal"
        and values[i].storage not in others
    )


def _dropped(facts: JointFacts, crossing: Sequence[int], slot: Mapping[int, int]) -> frozenset[int]:
    """The slots of outputs that go before the backward begins: neither the user nor a saved value holds them."""
    held = facts.held_outputs.union(facts.values[i].storage for i in crossing)
    return frozenset(slot[i] for i in facts.dropped if facts.values[i].storage not in held and i in slot)


def _is_product(values: Sequence[Value], i: int) -> bool:
    """Whether an operator that fuses with nothing (a product) has made a value, or the value that it is a view of."""
    return values[values[i].storage].kind == "extern"
