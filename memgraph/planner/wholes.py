"""Which gradients are written as a whole before their parts are (facts/parts.py).

    dx = norm's dx + skip's dx      of both halves, each of its own half:      norm's, skip's and both halves at once
                                    dx in place of the skip's, then halves:    norm's and dx; then dx and both halves

A part that is made from a whole of its own cannot take the place of what it is made of, which stands until the last
part is written. The whole can, but is written and read once more. So it is written where its parts would make the peak.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from memgraph.facts.liveness import Program, Sweep, sweep
from memgraph.facts.values import Value


def write_wholes(values: Sequence[Value], program: Program, swept: Sweep) -> tuple[Program, Sweep]:
    """A backward with those wholes settled that lower its peak, as Inductor allocates, and its sweep."""
    lowest = program, swept
    while (whole := _whole_at_peak(values, program, swept)) is not None:
        program = dataclasses.replace(program, settled=program.settled | {whole})
        swept = sweep(values, program, fused=True)
        if swept.peak > lowest[1].peak:
            break
        if swept.peak < lowest[1].peak:  # where they are equal, it is another whole's as well
            lowest = program, swept
    return lowest


def copied_parts(values: Sequence[Value], program: Program) -> list[int]:
    """The parts that are copied out of a whole that is written."""
    return [
        program.values[slot]
        for slot in program.settled
        if values[program.values[slot]].part and _whole(values, program, slot) in program.settled
    ]


def first_parts(values: Sequence[Value], program: Program) -> dict[int, int]:
    """By slot of the first part that is copied out of a whole that is written, the slot of that whole."""
    found: dict[int, int] = {}
    for slot in sorted(program.settled):
        if values[program.values[slot]].part and (whole := _whole(values, program, slot)) in program.settled:
            found.setdefault(whole, slot)
    return {slot: whole for whole, slot in found.items()}


def _whole_at_peak(values: Sequence[Value], program: Program, swept: Sweep) -> int | None:
    """The whole of the part that is written at the peak, if it is not written itself."""
    if not program.settled:
        return None
    slot = max(range(len(swept.usage)), key=swept.usage.__getitem__)
    if slot not in program.settled or not values[program.values[slot]].part:
        return None
    whole = _whole(values, program, slot)
    return None if whole in program.settled else whole


def _whole(values: Sequence[Value], program: Program, slot: int) -> int:
    """The slot of what a slot shows."""
    while values[program.values[slot]].kind == "view":
        slot = program.reads[slot][0]
    return slot
