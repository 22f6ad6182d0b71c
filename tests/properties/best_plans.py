"""How good is the planner? Small random graphs, all legal plans of which are tried.

    python -m tests.properties.best_plans --examples 200 --seed 1

For each graph all saved sets of up to VALUES free values, with each kind of copies, and for each of these all sets of
values that may leave, in the widest and in the narrowest window. For a few budgets between the lowest peak and that of
Inductor's own split: how much longer does a step of the planner's choice take than the fastest plan's, and does the
bound stay below that?
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from memgraph.facts.joint import JointFacts
from memgraph.planner.candidates import Candidate
from memgraph.planner.copies import Copies
from memgraph.planner.cut import SavedSetCut
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.planner.schedule import Unschedulable, make_schedule
from memgraph.planner.solve import Planner
from tests.properties.test_plans import POINTWISE, holds
from tests.support.graphs import capture
from tests.support.programs import programs

VALUES, MOVED = 7, 5
BUDGETS = 4
# A link that hides some copies of these graphs and not others: an operator of them takes 10 to 100 ns.
RATES = (5e9, 1e9, 2e8)
WINDOWS = (math.inf, 0.0)
# A choice that takes longer than the best by more than this share of a step is told.
BEST = 0.03


@dataclasses.dataclass(frozen=True)
class Judged:
    """One budget of one graph."""

    slower: float
    """By how much a step of the planner's choice takes longer than the fastest plan's, as a fraction; inf where it
    found none."""
    gap: float
    """The same, as the bound has it: at most so much."""
    sound: bool
    """Whether no plan is faster than the bound."""


def everything(planner: Planner) -> Iterator[Candidate] | None:
    """All legal plans; None where they are too many."""
    facts = planner.facts
    needed = [i for i in SavedSetCut(facts).needed if holds(facts.values[i])]
    fixed = frozenset(i for i in needed if facts.values[i].fixed)
    free = [i for i in needed if i not in fixed]
    return _all(planner, fixed, free) if 2 <= len(free) <= VALUES else None


def _all(planner: Planner, fixed: frozenset[int], free: list[int]) -> Iterator[Candidate]:
    yield planner.stock
    for kept, copies in itertools.product(itertools.product((False, True), repeat=len(free)), Copies):
        saved = fixed.union(i for i, keep in zip(free, kept, strict=True) if keep)
        try:
            base = planner.candidates.evaluate(make_schedule(planner.facts, saved, copies))
        except Unschedulable:
            continue
        yield base
        yield from _moved(planner, base)


def _moved(planner: Planner, base: Candidate) -> Iterator[Candidate]:
    offloader = planner.offloader
    if offloader is None:
        return
    movable = offloader.leaving.movable(base)[:MOVED]
    for away in itertools.product((False, True), repeat=len(movable)):
        chosen = [i for i, leaves in zip(movable, away, strict=True) if leaves]
        for window in WINDOWS if chosen else ():
            yield offloader._with(base, offloader.leaving.assign(base, chosen), window)


def step_time(facts: JointFacts, planner: Planner) -> float:
    """Seconds of a step as Inductor splits the graph."""
    once = sum(facts.values[i].seconds for i in (*facts.forward, *facts.backward))
    return once + sum(planner.stock.schedule.seconds)


def judge(facts: JointFacts, rate: float | None) -> list[Judged]:
    """All budgets of one graph; none where it has too many plans."""
    planner = Planner(facts, offload=None if rate is None else Tiers((Tier("host", rate, rate),)))
    plans = everything(planner)
    found = [] if plans is None else list(plans)
    if not found:
        return []
    step = step_time(facts, planner)
    low, top = min(c.peak for c in found), planner.stock.peak
    judged = []
    for bound in sorted({low + (top - low) * n // BUDGETS for n in range(BUDGETS)} - {top}):
        fastest = min(c.seconds for c in found if c.peak <= bound)
        best, least = planner.best(bound), planner.bounds.under(bound)
        sound = least is not None and least.seconds <= fastest + 1e-9 * step
        took = math.inf if best is None else (step + best.seconds) / (step + fastest) - 1
        gap = math.inf if best is None or least is None else (step + best.seconds) / (step + least.seconds) - 1
        judged.append(Judged(took, gap, sound))
    return judged


def main(
    examples: Annotated[int, typer.Option(help="How many graphs.")] = 200,
    seed: Annotated[int, typer.Option(help="Of Hypothesis.")] = 0,
) -> None:
    """Judge the planner on random graphs; prints one line of JSON."""
    start = time.perf_counter()
    graphs: list[list[Judged]] = []

    def enough(program: object) -> bool:
        facts = capture(dataclasses.replace(program, batch=8, size=2)).facts
        judged = judge(facts, (None, *RATES)[len(graphs) % (1 + len(RATES))])
        if judged:
            graphs.append(judged)
        for each in judged:
            if each.slower > BEST:
                print(f"{each.slower:.1%} slower: {program}", file=sys.stderr, flush=True)
        return len(graphs) >= examples

    quiet = settings(
        max_examples=100 * examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.suppress(NoSuchExample):
        find(programs(POINTWISE.split(), most=8, outputs=1), enough, settings=quiet, random=random.Random(seed))
    judged = [each for graph in graphs for each in graph]
    slower = [each.slower for each in judged]
    gaps = [each.gap for each in judged if math.isfinite(each.gap)]
    print(
        json.dumps(
            {
                "graphs": len(graphs),
                "budgets": len(judged),
                "best": sum(each <= 1e-9 for each in slower),
                "within 3 %": sum(each <= BEST for each in slower),
                "no plan found": sum(map(math.isinf, slower)),
                "worst": max((each for each in slower if math.isfinite(each)), default=0.0),
                "bounds broken": sum(not each.sound for each in judged),
                "gap, median": statistics.median(gaps) if gaps else None,
                "gap, worst": max(gaps, default=None),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
    )


if __name__ == "__main__":
    typer.run(main)
