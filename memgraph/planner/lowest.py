"""The lowest peak that single changes of a choice lead to.

Problem: a step reaches most at one operator. Which values should change sides, so that it reaches less?

    saved values that stand at the peak                              are computed again instead
    recomputed values that stand there, and what is made of them     are saved instead: what they are made of goes

Why not a library: local search is a dozen lines; what it takes is a judge for each step, and that is the sweep.

Algorithm: the first change that lowers the peak is made, then those at the new peak are tried, last of them those that
have not helped before. In a small graph any change is tried, and any exchange of two values. It stops after a number of
sweeps (polish.py), never by the clock.

Oracle: tests/planner/test_lowest.py holds which changes are tried; tests/properties/test_plans.py compares the planner
with every saved set of small graphs (test_brute_force). Without exchanges 3 of 95 random graphs of up to 10
values missed their lowest peak, by up to 29 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from memgraph.planner.candidates import Candidate, Candidates, by_peak
from memgraph.planner.polish import changes, may_drop, sweeps, worth_saving

# In a larger graph only changes at the peak are tried: of all there are more than the sweeps that it may have.
SMALL = 500


def lowest(candidates: Candidates, starts: Iterable[Candidate]) -> Candidate:
    """The candidate with the lowest peak that single changes of any start lead to.

    The starts share one number of sweeps: a later one has what the earlier ones have left.
    """
    found, left = [], sweeps(candidates.facts)
    for start in starts:
        lower, left = _lowered(candidates, start, left)
        found.append(lower)
    return min(found, key=lambda candidate: candidate.peak)


def _lowered(candidates: Candidates, start: Candidate, left: int) -> tuple[Candidate, int]:
    """The candidate with the lowest peak that single changes lead to, and how many sweeps are left."""
    best = start
    tried: set[frozenset[int]] = set()
    failed: set[frozenset[int]] = set()
    improved = True
    while improved:
        improved, base = False, frozenset(best.schedule.saved)
        for saved in _changes(candidates, best, failed):
            if left <= 0:
                return best, 0
            if saved in tried:
                continue
            tried.add(saved)
            left -= 1
            found = candidates.of(saved, best.schedule.copies)
            if found is not None and by_peak(found) < by_peak(best):  # of equal peaks the faster one leads on
                best, improved = found, True
                break
            failed.add(saved ^ base)
    return best, left


def _changes(candidates: Candidates, base: Candidate, failed: Set[frozenset[int]]) -> Iterable[frozenset[int]]:
    """Saved sets that differ from the base by a value or two.  failed: values whose change has not helped before."""
    if len(candidates.facts.values) <= SMALL:
        return changes(candidates, base)  # one by one: there are many exchanges
    saved = frozenset(base.schedule.saved)
    return sorted(_at_the_peak(candidates, base), key=lambda changed: changed ^ saved in failed)


def _at_the_peak(candidates: Candidates, base: Candidate) -> Iterator[frozenset[int]]:
    """Saved sets that differ from the base by a value that stands at its peak, or that is made of one."""
    values, saved = candidates.facts.values, frozenset(base.schedule.saved)
    forward = base.forward.peak >= base.carried + base.backward.peak
    swept, program = (base.forward, base.schedule.forward) if forward else (base.backward, base.schedule.backward)
    peak = swept.usage.index(swept.peak) if swept.peak else 0
    never = len(swept.usage)
    standing = [s for s, born in swept.births.items() if born <= peak <= swept.deaths.get(s, never)]
    if not forward:
        again = {program.values[s] for s in standing}.intersection(base.schedule.recomputed)
        for i in worth_saving(candidates, base):
            if i in again or not again.isdisjoint(values[i].inputs):
                yield saved | {i}
    storages = {values[program.values[s]].storage for s in standing}
    droppable = (i for i in saved if values[i].storage in storages and may_drop(candidates.facts, i))
    for i in sorted(droppable, key=lambda i: (-values[values[i].storage].bytes, i)):
        yield saved - {i}
