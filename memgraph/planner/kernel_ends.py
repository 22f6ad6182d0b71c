"""Where kernels end, so that what one function of C++ holds at once keeps a bound.

On the CPU Inductor writes one function for all that lies between two operators that fuse with nothing, and what it
reads and writes stands until it returns:

    sweep:     s = q @ k;  e* = exp(s - max)  over s;  w* = e / sum;  w @ v         * written;  two squares at once
    Inductor:  one function reads s and writes e and w                              three

    here:      e* | w*      a kernel ends before w: one function reads s and writes e, the next reads e and writes w

A kernel ends before a value that would take a function over the bound, where something that the function holds would be
gone by then. What ends there is not read from cache by what follows, so where the bound has room nothing ends. But
behind a gradient that is written as a whole one always does: the function would hold it, its parts, and what it is made
of (wholes.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from memgraph.facts.joint import JointFacts
from memgraph.facts.liveness import Program, Sweep
from memgraph.facts.values import Value
from memgraph.planner.candidates import Candidate
from memgraph.planner.decisions import KernelEnd, Phase, node_name
from memgraph.planner.wholes import first_parts

# What is at most this share of the bound is no reason to end a kernel: the sums and maxima of rows, say.
SMALL = 1 / 256


def kernel_ends(facts: JointFacts, candidate: Candidate, limit: float = math.inf) -> tuple[KernelEnd, ...]:
    """Where kernels of a candidate's programs end, in their order.

    limit: bytes above the baseline that no function may hold; with none, kernels end behind wholes alone.
    """
    limit, schedule = max(limit, candidate.peak), candidate.schedule
    forward, backward = schedule.forward, schedule.backward
    steps = iter(schedule.backward_steps)
    of_forward = [facts.values[i].name for i in forward.values]
    of_backward = [
        "" if slot < backward.inputs or slot in backward.loads else node_name(facts.values[i].name, copy)
        for slot in range(len(backward.values))
        for i, copy in [(0, 0) if slot < backward.inputs or slot in backward.loads else next(steps)]
    ]
    sides: tuple[tuple[Phase, list[str], Iterator[tuple[int, list[int]]]], ...] = (
        ("forward", of_forward, _ends(facts, forward, candidate.forward, 0, limit)),
        ("backward", of_backward, _ends(facts, backward, candidate.backward, candidate.carried, limit)),
    )
    return tuple(
        KernelEnd(phase, names[slot], tuple(names[other] for other in written))
        for phase, names, ends in sides
        for slot, written in ends
    )


def _ends(
    facts: JointFacts, program: Program, swept: Sweep, level: int, limit: float
) -> Iterator[tuple[int, list[int]]]:
    """The slots before whose values a kernel ends, and those that it has written by then.

    level: bytes above the baseline when the program begins.
    """
    born: dict[int, int] = {}
    gone: dict[int, int] = {}
    for storage, slot in swept.births.items():
        born[slot] = born.get(slot, 0) + swept.bytes[storage]
    for storage, slot in swept.deaths.items():
        gone[slot] = gone.get(slot, 0) + swept.bytes[storage]
    small, held = limit * SMALL, None  # held: by the function, from its first value on; None between two functions
    behind: list[int] = []  # what the function has written
    wholes = first_parts(facts.values, program)
    for slot in range(program.inputs, len(program.values)):
        written = born.get(slot, 0)
        if slot in program.loads or _ends_functions(facts.values, program.values[slot]):
            held = None
        elif written:
            if slot in wholes:
                yield slot, [wholes[slot]]
                held = None
            elif held is not None and held + written > limit and written > small and held - level > small:
                yield slot, behind
                held = None
            fused = facts.values[program.values[slot]].kind != "tuple"
            behind = [*(() if held is None else behind), *((slot,) if fused else ())]
            held = (level if held is None else held) + written
        level += written - gone.get(slot, 0)


def _ends_functions(values: Sequence[Value], i: int) -> bool:
    """Whether a value is made by an operator that is called by itself.

    Of those with several outputs one may be a reduction (the maximum of a row, and its place), which is not.
    """
    value = values[i]
    return value.called or (value.kind == "extern" and all(values[read].kind != "tuple" for read in value.inputs))
