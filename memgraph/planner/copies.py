"""Up to when a recomputed value may be computed once more, instead of staying live.

Problem: several regions of the backward may need one recomputed value. It can stay live from the first to the last of
them, or each region computes its own copy. A copy is worth its time if what it is made of is there anyway:

    y = x @ W; z = gelu(y); u = z @ V     recomputed: y, z, u. The gradient of V reads z, then gelu's gradient reads y.
                                          So y is there when z is needed, and z is made of it a second time.

Measured on 36 blocks of GELU: a smallest peak of 10.5 activations instead of 16.5 (docs/decisions/0010).

Why not a library: torch's partitioner knows no copies; what it recomputes stays live until its last reader has run.

Algorithm: one walk over the values in topological order collects what fused operators alone make each value of. A copy
is allowed up to the last position of the backward at which all of these sources are there.

Oracle: the cases of tests/planner/test_schedule.py, with the steps that each makes; tests/properties/test_plans.py
draws all kinds of copies in plans that must compute the same bits and peak where they say.
"""

from __future__ import annotations

import enum
import math

from memgraph.facts.joint import JointFacts


class Copies(enum.IntEnum):
    """What fused operators may compute a recomputed value once more from."""

    NONE = 0
    """Nothing: every value is recomputed once."""
    OF_HELD = 1
    """Inputs and saved values."""
    OF_LIVE = 2
    """Recomputed values too, while they are there in any case."""


# Positions of the backward before the first and behind the last.
NEVER, ALWAYS = -math.inf, math.inf
# A value that is made of more sources than this gets no copies of live values: it bounds the sets of this search.
MOST_SOURCES = 8


def copied_until(facts: JointFacts, held: set[int], copies: Copies) -> list[float]:
    """By value: the position of the backward up to which it may be computed once more."""
    if copies is Copies.NONE:
        return [NEVER] * len(facts.values)
    if copies is Copies.OF_HELD:
        return _of_held(facts, held)
    return _of_live(facts, held)


def _of_held(facts: JointFacts, held: set[int]) -> list[float]:
    always = held.union(facts.primals, facts.tangents)
    for i, inputs in facts.inlinable_forward:  # no value of the backward is computed twice
        if always.issuperset(inputs):
            always.add(i)
    until = [NEVER] * len(facts.values)
    for i in always:
        until[i] = ALWAYS
    return until


def _of_live(facts: JointFacts, held: set[int]) -> list[float]:
    """A recomputed value is there until the last operator has run that reads it, or that reads what fused operators
    make of it.

    A source is not there for the sake of a value through which all of those readers reach it: that value could stay in
    the source's place. tanh's gradient reads tanh(y) and not y, so y does not stay for a copy of tanh(y).
    """
    values = facts.values
    sources, through = _sources(facts, held)
    reads: dict[int, list[tuple[int, int]]] = {}  # storage -> (position in the backward, value read there), last first
    for position in range(len(facts.backward) - 1, -1, -1):
        for i in values[facts.backward[position]].inputs:
            made_of = sources[i]
            if made_of is not None and len(made_of) == 1:
                reads.setdefault(next(iter(made_of)), []).append((position, i))

    def there(source: int, i: int) -> float:
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
    """By value: the storages that fused operators alone make it of, and the values that they make on the way.

    Held values and inputs have no sources: they are there. None: too many sources. The way is kept for values of one
    source.
    """
    nothing: frozenset[int] = frozenset()
    sources: list[frozenset[int] | None] = []
    through: list[frozenset[int]] = []
    for i, value in enumerate(facts.values):
        found: frozenset[int] | None = nothing
        way = nothing
        if i not in held and value.kind not in ("primal", "tangent"):
            found = frozenset((value.storage,))
            if value.inlinable:
                found = _union([sources[j] for j in value.inputs])
                if found is not None and len(found) == 1:
                    way = frozenset((i,)).union(*(through[j] for j in value.inputs))
        sources.append(found)
        through.append(way)
    return sources, through


def _union(parts: list[frozenset[int] | None]) -> frozenset[int] | None:
    """All sources of these parts; None if they are too many."""
    found: set[int] = set()
    for part in parts:
        if part is None:
            return None
        found |= part
    return frozenset(found) if len(found) <= MOST_SOURCES else None
