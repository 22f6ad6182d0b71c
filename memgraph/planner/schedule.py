"""From a set of saved values to two programs: what the forward runs, and the backward with its recomputation.

A value that the backward needs and that was not saved is computed again right before its first use there. Used again
in another region of the backward it is, where nothing but fused operators would have to run, computed once more
(a copy), so that no recomputed value stays live across regions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program


@dataclasses.dataclass(frozen=True)
class Schedule:
    """saved: values that cross.  backward_steps: (value, copy) in order; copy 0 is the first.

    forward, backward: the programs for the sweep.  forward_region, backward_region: region of each slot.
    seconds: predicted time of recomputation, by region.  recomputed: values computed again.
    """

    saved: tuple[int, ...]
    backward_steps: tuple[tuple[int, int], ...]
    backward_reads: tuple[tuple[tuple[int, int], ...], ...]
    forward: Program
    backward: Program
    forward_region: tuple[int, ...]
    backward_region: tuple[int, ...]
    seconds: tuple[float, ...]
    recomputed: frozenset[int]


class Unschedulable(Exception):
    """A saved set from which the backward cannot be computed: a value that must not run twice is missing."""


def make_schedule(facts: JointFacts, saved: Iterable[int], copies: bool = True) -> Schedule:
    """Order the backward for a saved set; saved values that nothing needs are dropped."""
    values = facts.values
    held = set(saved)
    backward_set = set(facts.backward)
    needed: set[int] = set()
    made: dict[tuple[int, int], int] = {}  # (value, region) -> copy
    newest: dict[int, tuple[int, int]] = {}  # value -> (copy, region) last made
    counts: dict[int, int] = {}
    steps: list[tuple[int, int]] = []
    reads: list[tuple[tuple[int, int], ...]] = []
    regions: list[int] = []
    seconds = [0.0] * len(facts.region_names)
    cheap = _cheap_to_copy(facts, held)

    def at_hand(i: int, region: int) -> tuple[int, int] | None:
        """The slot from which the step of `region` reads value i, or None where it has to be computed first."""
        if i in held or values[i].kind in ("primal", "tangent") or (i in backward_set and (i, -1) in made):
            if i not in backward_set and values[i].kind != "tangent":
                needed.add(i)
            return (i, 0)
        if (i, region) in made:
            return (i, made[i, region])
        if i in newest and not (copies and cheap[i]):
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
            regions.append(region)
            seconds[region] += values[j].seconds

    for b in facts.backward:
        region = values[b].region
        for i in values[b].inputs:
            if at_hand(i, region) is None:
                compute(i, region)
        steps.append((b, 0))
        reads.append(tuple(at_hand(i, region) for i in values[b].inputs))  # type: ignore[misc]
        regions.append(region)
        made[b, -1] = 0
    last_region = regions[-1] if regions else 0
    for i in facts.backward_outputs:  # a gradient may be a forward value itself
        if i not in backward_set and at_hand(i, last_region) is None:
            compute(i, last_region)
    crossing = tuple(sorted(needed))
    forward = forward_program(facts, crossing)
    backward = _backward_program(facts, crossing, steps, reads)
    return Schedule(
        saved=crossing,
        backward_steps=tuple(steps),
        backward_reads=tuple(reads),
        forward=forward,
        backward=backward,
        forward_region=tuple(values[v].region for v in forward.values),
        backward_region=(0,) * backward.inputs + tuple(regions),
        seconds=tuple(seconds),
        recomputed=frozenset(i for i, _ in steps if i not in backward_set),
    )


def _cheap_to_copy(facts: JointFacts, held: set[int]) -> list[bool]:
    """Whether a value comes from what is at hand through fused operators only."""
    cheap = []
    for i, value in enumerate(facts.values):
        if i in held or value.kind in ("primal", "tangent"):
            cheap.append(True)
        else:
            fused = value.kind in ("view", "pointwise", "symbol")
            cheap.append(fused and not value.fixed and all(cheap[j] for j in value.inputs))
    return cheap


def forward_program(facts: JointFacts, crossing: tuple[int, ...]) -> Program:
    """What the forward runs when the values in `crossing` are saved."""
    values = facts.values
    inputs = [i for i, value in enumerate(values) if value.kind == "primal"]
    kept = set(facts.forward_outputs) | set(crossing)
    needed = set(kept)
    for i in reversed(facts.forward):
        if values[i].fixed.startswith(("mutates", "has side")):
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
    )
