"""The bytes that stand at each operator by an optimum of the linear program: to see which rows the program lacks.

An estimate is enough: every plan satisfies a row that is added without need. All bytes are in units of the program.
"""

from __future__ import annotations

import numpy as np

from memgraph.planner.relaxation import Relaxation


def forward_levels(relaxation: Relaxation, values: np.ndarray) -> np.ndarray:
    """By place of the forward: the bytes that stand there at least.  values: the optimum, by variable."""
    count = len(relaxation.facts.forward)
    level = relaxation.moments.forward / relaxation.unit
    born = np.zeros((1 + len(relaxation.tiers), count + 1))  # the last column: behind the last operator
    for stay in relaxation.stays:
        born[0, stay.born] += values[relaxation.saved[stay.value]] * stay.bytes
        for n, tier in enumerate(relaxation.tiers, 1):
            if (stay.value, tier.name) in relaxation.away:
                born[n, stay.born] += values[relaxation.away[stay.value, tier.name]] * stay.bytes
    saved, *away = np.cumsum(born, axis=1)[:, :count]
    level = level + saved
    for tier, gone in zip(relaxation.tiers, away, strict=True):
        rate = tier.out * relaxation.second / relaxation.unit
        level = level - np.minimum(gone, (relaxation.clocks[0][:-1] + values[relaxation.waits[0]]) * rate)
    return level


def backward_levels(relaxation: Relaxation, values: np.ndarray) -> np.ndarray:
    """By place of the backward: about the bytes that stand there, without recomputed values.  values: the optimum."""
    change = np.zeros(len(relaxation.facts.backward) + 1)
    run = _runs(relaxation, values)
    for stay in relaxation.stays:
        share = values[relaxation.saved[stay.value]]
        here = share - sum(values[column] for column in relaxation.leaving(stay.value))
        waits = stay.waits
        if stay.value not in relaxation.needs.read_at:
            waits = max([waits, *(run[w] for w in relaxation.needs.readers[stay.value] if w in run)])
        change[0] += here * stay.bytes
        change[min(waits, len(change) - 2) + 1] -= here * stay.bytes
        if stay.again <= stay.last:
            change[stay.again] += share * stay.bytes
            change[stay.last + 1] -= share * stay.bytes
        for place in stay.beside if share else ():
            change[place] -= share * stay.bytes
            change[place + 1] += share * stay.bytes
    return relaxation.moments.backward / relaxation.unit + np.cumsum(change)[:-1]


def _runs(relaxation: Relaxation, values: np.ndarray) -> dict[int, int]:
    """By value that is computed again by more than half: the place of the backward that first needs it."""
    run: dict[int, int] = {}
    for v in sorted(relaxation.needs.inputs, reverse=True):
        if v in relaxation.again and values[relaxation.again[v]] > 0.5:
            needed = [run[w] for w in relaxation.needs.readers[v] if w in run]
            needed += [relaxation.needs.read_at[v]] if v in relaxation.needs.read_at else []
            if needed:
                run[v] = min(needed)
    return run
