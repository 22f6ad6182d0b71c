"""From a set of saved values to two programs: what the forward runs, and the backward with its recomputation.

A value that the backward needs and that was not saved is computed again right before its first use there. Where
another region of the backward needs it too, it may be computed once more (a copy), so that it does not stay live in
between: where fused operators alone make it of values that are held, or of values that are there at that time in any
case:

    y = x @ W; z = gelu(y); u = z @ V     recomputed: y, z, u. V's gradient reads z, then gelu's gradient reads y. So y
                                          is there when z is needed, and z is made of it a second time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program
from memgraph.facts.values import Value


class Copies(enum.IntEnum):
    """Of which values fused operators may make a recomputed value once more: of none, of held ones, of live ones
    too."""

    NONE = 0
    OF_HELD = 1
    OF_LIVE = 2


@dataclasses.dataclass(frozen=True)
class Schedule:
    """saved: values that cross.  backward_steps: (value, copy) in order; copy 0 is the first.

    copies: which values may be computed once more.

    forward, backward: the programs for the sweep.
    seconds: predicted time of recomputation, by region.  recomputed: values computed again.
    """

    saved: tuple[int, ...]
    backward_steps: tuple[tuple[int, int], ...]
    backward_reads: tuple[tuple[tuple[int, int], ...], ...]
    forward: Program
    backward: Program
    seconds: tuple[float, ...]
    recomputed: frozenset[int]
    copies: Copies


NEVER, ALWAYS = -1, 2**62
MOST_SOURCES = 8


class Unschedulable(Exception):
    """A saved set from which the backward cannot be computed: a value that must not run twice is missing."""


def make_schedule(
    facts: JointFacts, saved: Iterable[int], copies: Copies = Copies.OF_HELD, *, settle: bool = True
) -> Schedule:
    """Order the backward for a saved set; saved values that nothing needs are dropped.

    settle: sums of a gradient are written to memory one by one. By itself Inductor adds products one by one, and makes
    one kernel of all other additions, until which all that they add stays live.
    """
    values = facts.values
    held = set(saved)
    backward_set = set(facts.backward)
    needed: set[int] = set()
    made: dict[tuple[int, int], int] = {}  # (value, region) -> copy
    newest: dict[int, tuple[int, int]] = {}  # value -> (copy, region) last made
    counts: dict[int, int] = {}
    steps: list[tuple[int, int]] = []
    reads: list[tuple[tuple[int, int], ...]] = []
    seconds = [0.0] * len(facts.region_names)
    until = _copied_until(facts, held, copies)
    now = 0  # position in facts.backward

    def at_hand(i: int, region: int) -> tuple[int, int] | None:
        """The slot from which the step of `region` reads value i, or None where it has to be computed first."""
        if i in held or values[i].kind in ("primal", "tangent") or (i in backward_set and (i, -1) in made):
            if i not in backward_set and values[i].kind != "tangent":
                needed.add(i)
            return (i, 0)
        if (i, region) in made:
            return (i, made[i, region])
        if i in newest and until[i] < now:
            return (i, newest[i][0])
        return None

    def compute(i: int, region: int) -> None:
        """Emit the recomputation of i and of all that it needs, in the order of the forward."""
        pending, wanted = [i], set()
        while pending:
            j = pending.pop()
            if j in wanted:
                continue
            if j in backward_set:
                raise Unschedulable(f"{values[j].name} is read before the backward computes it")
            if values[j].fixed:
                raise Unschedulable(f"{values[j].name} {values[j].fixed} and is not saved")
            wanted.add(j)
            pending.extend(k for k in values[j].inputs if at_hand(k, region) is None)
        for j in sorted(wanted):
            sources = tuple(at_hand(k, region) for k in values[j].inputs)
            copy = counts.get(j, 0)
            counts[j] = copy + 1
            made[j, region] = copy
            newest[j] = (copy, region)
            steps.append((j, copy))
            reads.append(sources)  # type: ignore[arg-type]
            seconds[region] += values[j].seconds

    for now, b in enumerate(facts.backward):  # noqa: B007, at_hand reads it
        region = values[b].region
        for i in values[b].inputs:
            if at_hand(i, region) is None:
                compute(i, region)
        steps.append((b, 0))
        reads.append(tuple(at_hand(i, region) for i in values[b].inputs))  # type: ignore[misc]
        made[b, -1] = 0
    last_region = values[facts.backward[-1]].region if facts.backward else 0
    for i in facts.backward_outputs:  # a gradient may be a forward value itself
        if i not in backward_set and at_hand(i, last_region) is None:
            compute(i, last_region)
    crossing = tuple(sorted(needed))
    forward = forward_program(facts, crossing)
    backward = _backward_program(facts, crossing, steps, reads, settle)
    return Schedule(
        saved=crossing,
        backward_steps=tuple(steps),
        backward_reads=tuple(reads),
        forward=forward,
        backward=backward,
        seconds=tuple(seconds),
        recomputed=frozenset(i for i, _ in steps if i not in backward_set),
        copies=Copies(copies),
    )


def _copied_until(facts: JointFacts, held: set[int], copies: Copies) -> list[int]:
    """Up to which position of the backward a value may be made once more; NEVER, ALWAYS."""
    if copies is Copies.NONE:
        return [NEVER] * len(facts.values)
    if copies is Copies.OF_HELD:
        return _made_of_held(facts, held)
    return _made_of_live(facts, held)


def _made_of_held(facts: JointFacts, held: set[int]) -> list[int]:
    until: list[int] = []
    for i, value in enumerate(facts.values):
        there = i in held or value.kind in ("primal", "tangent")
        again = _fused(value) and all(until[j] == ALWAYS for j in value.inputs)
        until.append(ALWAYS if there or again else NEVER)
    return until


def _made_of_live(facts: JointFacts, held: set[int]) -> list[int]:
    """A recomputed value is there until the last operator that reads it, or that reads what fused operators make of it.

    It is not there for the sake of a value that all of these are made through: that one could be there in its place
    (tanh's gradient reads tanh(y), not y).
    """
    values = facts.values
    sources, through = _sources(facts, held)
    reads: dict[int, list[tuple[int, int]]] = {}  # storage -> (position in the backward, value read there), last first
    for position in range(len(facts.backward) - 1, -1, -1):
        for i in values[facts.backward[position]].inputs:
            made_of = sources[i]
            if made_of is not None and len(made_of) == 1:
                reads.setdefault(next(iter(made_of)), []).append((position, i))

    def there(source: int, i: int) -> int:
        return next((position for position, read in reads.get(source, ()) if i not in through[read]), NEVER)

    until = []
    for i, value in enumerate(values):
        made_of = sources[i]
        if made_of is None or value.storage in made_of:
            until.append(NEVER)
        else:
            until.append(min((there(source, i) for source in made_of), default=ALWAYS))
    return until


def _sources(facts: JointFacts, held: set[int]) -> tuple[list[frozenset[int] | None], list[frozenset[int]]]:
    """For each value: the storages of which fused operators alone make it, and what they make on the way.

    Held values and inputs are made of nothing: they are there. None: too many sources. The way is kept for one source.
    """
    nothing: frozenset[int] = frozenset()
    sources: list[frozenset[int] | None] = []
    through: list[frozenset[int]] = []
    for i, value in enumerate(facts.values):
        found: frozenset[int] | None = nothing
        way = nothing
        if i not in held and value.kind not in ("primal", "tangent"):
            found = frozenset((value.storage,))
            if _fused(value):
                made_of = [sources[j] for j in value.inputs]
                found = None if None in made_of else nothing.union(*made_of)  # type: ignore[arg-type]
                found = None if found is not None and len(found) > MOST_SOURCES else found
                if found is not None and len(found) == 1:
                    way = frozenset((i,)).union(*(through[j] for j in value.inputs))
        sources.append(found)
        through.append(way)
    return sources, through


def _fused(value: Value) -> bool:
    return value.kind in ("view", "pointwise", "symbol") and not value.fixed


def _product(values: Sequence[Value], i: int) -> bool:
    """Whether a value is what a product or another operator that fuses with nothing has made, or a view of it."""
    return values[values[i].storage].kind == "extern"


def forward_program(facts: JointFacts, crossing: tuple[int, ...]) -> Program:
    """What the forward runs when the values in `crossing` are saved."""
    values = facts.values
    inputs = [i for i, value in enumerate(values) if value.kind == "primal"]
    kept = set(facts.forward_outputs) | set(crossing)
    needed = set(kept)
    for i in reversed(facts.forward):
        if (fixed := values[i].fixed) is not None and fixed.runs_unread:
            needed.add(i)
        if i in needed:
            needed.update(values[i].inputs)
    order = inputs + [i for i in facts.forward if i in needed]
    slot = {i: s for s, i in enumerate(order)}
    return Program(
        values=tuple(order),
        reads=tuple(() if s < len(inputs) else tuple(slot[j] for j in values[i].inputs) for s, i in enumerate(order)),
        inputs=len(inputs),
        outputs=frozenset(slot[i] for i in kept if i in slot),
        owned=frozenset(),
    )


def _backward_program(
    facts: JointFacts,
    crossing: tuple[int, ...],
    steps: list[tuple[int, int]],
    reads: list[tuple[tuple[int, int], ...]],
    settle: bool,
) -> Program:
    values = facts.values
    tangents = [i for i, value in enumerate(values) if value.kind == "tangent"]
    primals = [i for i, value in enumerate(values) if value.kind == "primal" and i not in crossing]
    inputs = list(crossing) + primals + tangents
    slot: dict[tuple[int, int], int] = {(i, 0): s for s, i in enumerate(inputs)}
    for s, step in enumerate(steps):
        slot[step] = len(inputs) + s
    outputs = {slot[i, 0] for i in facts.backward_outputs if (i, 0) in slot}
    forward_outputs = {values[i].storage for i in facts.forward_outputs}
    return Program(
        values=tuple(inputs) + tuple(i for i, _ in steps),
        reads=((),) * len(inputs) + tuple(tuple(slot[read] for read in step) for step in reads),
        inputs=len(inputs),
        outputs=frozenset(outputs),
        owned=frozenset(
            s
            for s, i in enumerate(inputs)
            if not facts.retained
            and values[i].kind not in ("primal", "tangent")
            and values[values[i].storage].kind != "primal"
            and values[i].storage not in forward_outputs
        ),
        settled=frozenset(
            slot[i, copy]
            for i, copy in steps
            if values[i].accumulates and (settle or any(_product(values, j) for j in values[i].inputs))
        ),
    )
