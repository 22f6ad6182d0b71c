"""The lowest peak that single changes of a choice lead to.

Problem: a step reaches most at one operator. Which values should change sides, so that it reaches less?

    saved values that stand at the peak                              are computed again instead
    recomputed values that stand there, and what is made of them     are saved instead: what they are made of goes
    of a saved value what is made of it                              is saved instead: a join that goes early, say, and
                                                                     not its part, which waits (a thorough search)

Why not a library: local search is a dozen lines; what it takes is a judge for each step, and that is the sweep.

Algorithm: the first change that lowers the peak is made, then those at the new peak are tried, last of them those that
have not helped before. In a small graph any change is tried, and any exchange of two values. It stops after a number of
sweeps (polish.py), never by the clock.

Oracle: tests/planner/test_lowest.py holds which changes are tried; tests/properties/test_plans.py compares the planner
with every saved set of small graphs (test_brute_force). Without exchanges 3 of 95 random graphs of up to 10
values missed their lowest peak, by up to 29 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from memgraph.planner.candidates import Candidate, Candidates, by_peak
from memgraph.planner.polish import EFFORT, THOROUGH, changes, may_drop, sweeps, worth_saving

# In a larger graph only changes at the peak are tried: of all there are more than the sweeps that it may have.
SMALL = 500
# A value this much smaller than what it is made of does not count as that in another form (a statistic of a norm).
NEXT = 0.25


def lowest(candidates: Candidates, starts: Sequence[Candidate], *, thorough: bool = False) -> Candidate:
    """The candidate with the lowest peak that changes of any start lead to.

    The starts share one number of sweeps, and a later one has what the earlier ones have left. thorough: many more
    sweeps, in equal parts, which are spent on exchanges as well.
    """
    found, left = [], sweeps(candidates.facts, THOROUGH if thorough else EFFORT)
    for n, start in enumerate(starts):
        part = left // (len(starts) - n) if thorough else left
        lower, unused = _lowered(candidates, start, part, exchanged=thorough)
        left -= part - unused
        found.append(lower)
    return min(found, key=lambda candidate: candidate.peak)


def _lowered(candidates: Candidates, start: Candidate, left: int, exchanged: bool) -> tuple[Candidate, int]:
    """The candidate with the lowest peak that changes lead to, and how many sweeps are left."""
    best = start
    tried: set[frozenset[int]] = set()
    failed: set[frozenset[int]] = set()
    improved = True
    while improved:
        improved, base = False, frozenset(best.schedule.saved)
        for saved in _changes(candidates, best, failed, exchanged):
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


def _changes(
    candidates: Candidates, base: Candidate, failed: Set[frozenset[int]], exchanged: bool
) -> Iterable[frozenset[int]]:
    """Saved sets that differ from the base by a value or a few.  failed: values whose change has not helped before."""
    if len(candidates.facts.values) <= SMALL:
        return changes(candidates, base)  # one by one: there are many exchanges
    saved = frozenset(base.schedule.saved)
    return sorted(_at_the_peak(candidates, base, exchanged), key=lambda changed: changed ^ saved in failed)


def _at_the_peak(candidates: Candidates, base: Candidate, exchanged: bool) -> Iterator[frozenset[int]]:
    """Saved sets that differ from the base by a value that stands at its peak, or that is made of one.

    exchanged: or by both.
    """
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
    droppable = [i for i in saved if values[i].storage in storages and may_drop(candidates.facts, i)]
    droppable.sort(key=lambda i: (-values[values[i].storage].bytes, i))
    for i in droppable:
        yield saved - {i}
    for i in droppable if exchanged else ():
        made = _made_of(candidates, base, i)
        yield from (saved - {i} | {reader} for reader in made)
        if len(made) > 1:
            yield saved - {i} | set(made)


def _made_of(candidates: Candidates, base: Candidate, i: int) -> list[int]:
    """The recomputed values that are made of a saved one, maybe by way of views, fused or much smaller values."""
    values, readers = candidates.facts.values, candidates.readers
    least = values[values[i].storage].bytes * NEXT
    found, seen, pending = [], {i, *base.schedule.saved}, [i]
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if reader in seen:
                continue
            seen.add(reader)
            if values[reader].bytes >= least and reader in base.schedule.recomputed and candidates.may_save(reader):
                found.append(reader)
            if values[reader].kind in ("view", "pointwise") or values[reader].bytes < least:
                pending.append(reader)
    return found
