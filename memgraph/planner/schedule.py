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
import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.planner.copies import NEVER, Copies, copied_until

Copy = tuple[int, int]
"""A value of the backward, and which of its computations there: 0 is the first, and the only one of most values."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A saved set with the two programs that follow from it."""

    saved: tuple[int, ...]
    """Values that cross to the backward, in the order of the graph."""
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

    @functools.cached_property
    def backward_steps(self) -> tuple[Copy, ...]:
        """What the backward computes, in order."""
        return tuple(copy for slot, copy in enumerate(self._held) if self._computes(slot))

    @functools.cached_property
    def backward_reads(self) -> tuple[tuple[Copy, ...], ...]:
        """What each step of the backward reads, in the order of its inputs."""
        reads = self.backward.reads
        return tuple(tuple(self._held[read] for read in reads[s]) for s in range(len(reads)) if self._computes(s))

    def settled(self) -> tuple[Copy, ...]:
        """The steps of the backward that are written to memory whatever reads them."""
        settled = self.backward.settled
        return tuple(copy for slot, copy in enumerate(self._held) if slot in settled and self._computes(slot))

    @functools.cached_property
    def _held(self) -> tuple[Copy, ...]:
        """By slot of the backward, the copy that it holds."""
        found: list[Copy] = []
        times: Counter[int] = Counter()
        for slot, i in enumerate(self.backward.values):
            found.append((i, times[i]))
            if self._computes(slot):
                times[i] += 1
        return tuple(found)

    def _computes(self, slot: int) -> bool:
        return slot >= self.backward.inputs and slot not in self.backward.loads


class Unschedulable(Exception):
    """A saved set from which the backward cannot be computed: a value that must not run twice is missing."""


def make_schedule(
    facts: JointFacts,
    saved: Iterable[int],
    copies: Copies = Copies.OF_HELD,
    *,
    settle: bool = True,
    fused: bool = True,
) -> Schedule:
    """Order the backward for a saved set; saved values that nothing needs are dropped.

    settle: the forward runs in the order of plans, not in Inductor's; sums of a gradient are written to memory one by
    one, and so is a mask that is drawn again and read by several steps. By itself Inductor adds products one by one,
    and makes one kernel of all other additions, until which all that they add stays live; and of a mask it writes the
    random numbers, which take more bytes. So is a value that an operator reads in a larger size: Inductor would write
    it in that; and a gradient that convolutions read channels last: Inductor may write it twice. And a product that a
    sum adds to what comes later is computed in its place; by itself Inductor computes it with the sum.

    fused: what is not settled is as Inductor does it; else as the FX interpreter does.

    Raises Unschedulable.
    """
    walk = _Backward(facts, saved, copies, facts.early if fused and not settle else frozenset())
    walk.run(facts.backward)
    walk.provide(facts.backward_outputs)
    crossing = walk.crossing()
    return Schedule(
        saved=crossing,
        forward=forward_program(facts, crossing, None if settle else facts.stock_forward),
        backward=backward_program(facts, crossing, walk.steps, walk.reads, settle),
        seconds=tuple(walk.seconds),
        recomputed=frozenset(walk.newest),
        copies=Copies(copies),
    )


class _Backward:
    """The steps of a backward, as they are appended operator by operator.

    What a step reads is named by a number: of a step, its own; of a value that is held, as `held` names it.
    """

    def __init__(self, facts: JointFacts, saved: Iterable[int], copies: Copies, late: frozenset[int]) -> None:
        """late: operators that run right before their reader."""
        self.facts, self.values, self.late = facts, facts.values, late
        kept = set(saved)
        self.until = copied_until(facts, kept, copies)
        self.held = kept.union(facts.primals, facts.tangents)
        """What is there from the start: saved values and inputs."""
        self.there = {i: held(i) for i in self.held}
        """By value that is held, or was computed and is not computed again, what its readers read."""
        self.computed_for: list[dict[int, int]] = [{} for _ in facts.region_names]
        """By region, the step that computed a value for it."""
        self.newest: dict[int, int] = {}
        """The step of each recomputed value that computed it last."""
        self.steps: list[int] = []
        """By step, the value that it computes."""
        self.reads: list[list[int]] = []
        self.seconds = [0.0] * len(facts.region_names)

    def run(self, operators: Sequence[int]) -> None:
        """Append the operators of the backward, and before each whatever it needs."""
        late, values, there, steps, found = self.late, self.values, self.there, self.steps, self.reads
        for position, operator in enumerate(operators):
            if operator in late:
                continue
            before = late.intersection(values[operator].inputs) if late else ()
            for i in (*before, operator):
                value = values[i]
                reads: tuple[int | None, ...] = tuple(map(there.get, value.inputs))
                if None in reads:
                    reads = tuple([self._read(j, value.region, position) for j in value.inputs])
                there[i] = len(steps)
                steps.append(i)
                found.append(reads)  # type: ignore[arg-type]

    def provide(self, outputs: Sequence[int]) -> None:
        """Append what the backward returns and did not compute: a gradient may be a forward value itself."""
        last = len(self.facts.backward) - 1
        region = self.values[self.facts.backward[last]].region if last >= 0 else 0
        for i in outputs:
            if i not in self.facts.in_backward:
                self._read(i, region, max(last, 0))

    def crossing(self) -> tuple[int, ...]:
        """The held forward values that a step reads or that the backward returns, in order."""
        read = set(itertools.chain.from_iterable(self.reads))
        wanted = read.union(map(held, self.facts.backward_outputs)).intersection(map(held, self.held))
        return tuple(sorted(i for i in map(held, wanted) if self.values[i].kind != "tangent"))

    def _read(self, i: int, region: int, position: int) -> int:
        """What a step of this region reads for a value, which is computed now if it is not at hand."""
        found = self._at_hand(i, region, position)
        if found is None:
            self._recompute(i, region, position)
            found = self.newest[i]
        return found

    def _at_hand(self, i: int, region: int, position: int) -> int | None:
        """What a step of this region may read for a value; None if it is not there yet."""
        found = self.there.get(i)
        if found is None:
            found = self.computed_for[region].get(i)
            if found is None and self.until[i] < position:
                found = self.newest.get(i)
        return found

    def _recompute(self, i: int, region: int, position: int) -> None:
        """Append the recomputation of a value and of all that it needs, in the order of the forward."""
        values, there, steps, computed = self.values, self.there, self.steps, self.computed_for[region]
        newest, until, found = self.newest, self.until, self.reads
        seconds = 0.0
        for j in sorted(self._missing(i, region, position)):
            value = values[j]
            reads: tuple[int | None, ...] = tuple(map(there.get, value.inputs))
            if None in reads:
                reads = tuple([self._at_hand(k, region, position) for k in value.inputs])
            newest[j] = computed[j] = step = len(steps)
            if until[j] == NEVER:  # once is enough: from now on it is there for all
                there[j] = step
            found.append(reads)  # type: ignore[arg-type]
            steps.append(j)
            seconds += value.seconds
        self.seconds[region] += seconds

    def _missing(self, i: int, region: int, position: int) -> set[int]:
        """A value and all that has to be computed before it.  Raises Unschedulable."""
        values, there, in_backward, at_hand = self.values, self.there, self.facts.in_backward, self._at_hand
        pending, missing = [i], set()
        while pending:
            j = pending.pop()
            if j in missing:
                continue
            value = values[j]
            if j in in_backward:
                raise Unschedulable(f"{value.name} is read before the backward computes it")
            if value.fixed:
                raise Unschedulable(f"{value.name} {value.fixed} and is not saved")
            missing.add(j)
            pending += [k for k in value.inputs if k not in there and at_hand(k, region, position) is None]
        return missing


def held(i: int) -> int:
    """How reads name a value that the backward gets, beside the numbers of steps; and the value of such a name."""
    return ~i


def forward_program(facts: JointFacts, crossing: tuple[int, ...], order: Sequence[int] | None = None) -> Program:
    """What the forward runs when the values in `crossing` are saved.

    order: of all values of the forward, where it is another one than that of a plan.
    """
    values, inputs = facts.values, facts.primals
    kept = {*facts.forward_outputs, *crossing}
    always = facts.always_run
    needed = always | facts.with_inputs(crossing, always)
    run = [i for i in order or facts.forward if i in needed]
    ran = (*inputs, *run)
    slot = {i: s for s, i in enumerate(ran)}
    at = slot.__getitem__
    return Program(
        values=ran,
        reads=((),) * len(inputs) + tuple([tuple(map(at, values[i].inputs)) for i in run]),
        inputs=len(inputs),
        outputs=frozenset(slot[i] for i in kept if i in slot),
        owned=frozenset(),
        dropped=_dropped(facts, crossing, slot),
        copied=frozenset(slot[i] for i in facts.copied.intersection(crossing)),
    )


def backward_program(
    facts: JointFacts,
    crossing: tuple[int, ...],
    steps: Sequence[int],
    reads: Sequence[Sequence[int]],
    settle: bool,
) -> Program:
    """What the backward runs.

    steps: the values that it computes, in order.  reads: by step, the steps that it reads; a value that the backward
    gets is named as `held` does.  settle: as of `make_schedule`.
    """
    crossed = set(crossing)
    inputs = [*crossing, *(i for i in facts.primals if i not in crossed), *facts.tangents]
    first = len(inputs)
    slot = {held(i): s for s, i in enumerate(inputs)}
    slot.update(enumerate(range(first, first + len(steps))))
    at = slot.__getitem__
    place = {i: s for s, i in enumerate(inputs)}
    returned = {i for i in facts.backward_outputs if i not in place}
    for s, i in enumerate(steps, first):
        if i in returned:
            place.setdefault(i, s)
    return Program(
        values=(*inputs, *steps),
        reads=((),) * first + tuple([tuple(map(at, step)) for step in reads]),
        inputs=first,
        outputs=frozenset(place[i] for i in facts.backward_outputs if i in place),
        owned=_owned(facts, inputs, facts.copied & crossed),
        settled=frozenset(first + step for step in _settled(facts, steps, reads, settle)),
    )


def _settled(facts: JointFacts, steps: Sequence[int], reads: Sequence[Sequence[int]], settle: bool) -> Iterator[int]:
    """The steps that are written to memory whatever reads them."""
    sums, masks = facts.sums_of_products, facts.random_masks
    if settle:
        sums = sums | facts.settled
    # Where the numbers themselves are saved, they are at hand, and each reader compares them.
    drawn = {n for n, i in enumerate(steps) if i in masks and any(read >= 0 for read in reads[n])} if masks else set()
    mask = drawn if settle else ()
    readers = Counter(read for step in reads for read in step) if mask else Counter[int]()
    several = {*_masked_for_several(facts, steps, reads, mask, readers)} if mask else set()
    for n, i in enumerate(steps):
        if i in sums or n in several or (n in mask and readers[n] > 1):
            yield n


def _masked_for_several(
    facts: JointFacts,
    steps: Sequence[int],
    reads: Sequence[Sequence[int]],
    masks: Collection[int],
    readers: Mapping[int, int],
) -> Iterator[int]:
    """By a mask that has one reader: the step that is made of it entry by entry, and that several steps read."""
    only = {read: n for n, step in enumerate(reads) for read in step if readers[read] == 1}
    kinds = [facts.values[i].kind for i in steps]
    for n in masks:
        while readers[n] == 1 and n in only and kinds[only[n]] in ("pointwise", "view"):
            n = only[n]
        if n not in masks and readers[n] > 1 and kinds[n] == "pointwise":
            yield n


def _owned(facts: JointFacts, inputs: Sequence[int], copied: Collection[int]) -> frozenset[int]:
    """Input slots of the backward whose storage nobody else holds: it goes when its last reader has run.

    copied: inputs of which the backward gets a copy.
    """
    values = facts.values
    if facts.retained:
        return frozenset()
    others = facts.held_outputs
    return frozenset(
        slot
        for slot, i in enumerate(inputs)
        if i in copied
        or (
            values[i].kind not in ("primal", "tangent")
            and values[values[i].storage].kind != "primal"
            and values[i].storage not in others
        )
    )


def _dropped(facts: JointFacts, crossing: Sequence[int], slot: Mapping[int, int]) -> frozenset[int]:
    """The slots of outputs that go before the backward begins: neither the user nor a saved value holds them."""
    held = facts.held_outputs.union(facts.values[i].storage for i in crossing)
    return frozenset(slot[i] for i in facts.dropped if facts.values[i].storage not in held and i in slot)
