"""The bytes that stand at each operator by an optimum of the linear program: to see which rows the program lacks.

An estimate is enough: every plan satisfies a row that is added without need. All bytes are in units of the program.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memgraph.planner.moments import is_buffer
from memgraph.planner.relaxation import Relaxation
from memgraph.planner.remade import Remade


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


def backward_levels(relaxation: Relaxation, values: np.ndarray, remade: Remade | None = None) -> np.ndarray:
    """By place of the backward: about the bytes that stand there.  values: the optimum.

    remade: None leaves out recomputed values.
    """
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
    kept = {} if remade is None else _remade(remade, run)
    for v, (start, end) in kept.items():
        change[start] += relaxation.held(v)
        change[end] -= relaxation.held(v)
    return relaxation.moments.backward / relaxation.unit + np.cumsum(change)[:-1]


def _remade(remade: Remade, run: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """By large value that is computed again: from which place of the backward it stands, and the one behind its last.

    A value of fused operators that is made of one large value is taken to be made anew.
    run: by value, the place of the backward that first needs it.
    """
    found: dict[int, tuple[int, int]] = {}
    facts, needs, last = remade.facts, remade.needs, remade.relaxation.moments.last
    for v, start in run.items():
        end = last.get(v, -1)
        if is_buffer(facts, v) or not remade.is_large(v) or end <= start:
            continue
        while facts.values[v].inlinable:
            large = [u for u in needs.inputs[v] if remade.is_large(u)]
            if len(large) != 1 or large[0] not in run:
                break
            v = large[0]
        first, stop = found.get(v, (start, end))
        found[v] = min(first, start), max(stop, end)
    return found


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
