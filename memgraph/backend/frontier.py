"""Time against memory: the plans of one captured step over the whole range of budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memgraph.backend.capture import Target
from memgraph.backend.explore import Explorer, explored
from memgraph.backend.joint_graph import Choice, Planning
from memgraph.backend.options import Options, parse_options
from memgraph.base import compat
from memgraph.base.errors import OptionsError
from memgraph.machine.hardware import Hardware
from memgraph.reporting.frontier import Frontier, Point
from memgraph.step.future_optimizer import Optimizer


def frontier(
    fn: Callable[..., Any],
    *args: Any,
    points: int = 12,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    hardware: Hardware | str | None = None,
    optimizer: Optimizer | None = None,
    **kwargs: Any,
) -> Frontier:
    """Return the plans that the memgraph backend finds for `points` budgets.

    The budgets go from the smallest one that can be kept to the one under which the plan costs no time.

    The step is captured once; nothing is compiled or run, so the peaks are those of the graph sweep. A budget in the
    options is one more point where it lies between. All else as in `plan`.

    Raises as `plan` does, but no BudgetError; OptionsError for fewer than two points, and for the option `plan`.
    """
    if points < 2:
        raise OptionsError(f"points {points} make no curve; allowed: 2 or more")
    asked = parse_options(options)
    parsed = asked.model_copy(update={"budget": None})
    if parsed.plan is not None:
        raise OptionsError("option 'plan' is the plan of one budget; allowed: leave it out, each budget is planned for")

    def task(explorer: Explorer) -> Frontier:
        return frontier_of(explorer, points, asked)

    return explored(fn, args, kwargs, Target.of(parsed, hardware, device, optimizer), task)


def frontier_of(explorer: Explorer, points: int, asked: Options | None = None) -> Frontier:
    """The frontier of a captured step.  asked: options whose budget is one more point where it lies between."""
    with compat.reading_with({}):
        planning, level = explorer.planning(None)
        plain = planning.variant(planning.cuts.plain)
        unplanned = plain.planner.unplanned().peak
        held = level + planning.bound.reserve
        lowest = within(planning, 0)
        least = lowest.variant.planner.bounds.smallest()
        wanted = [
            lowest.candidate.peak + (unplanned - lowest.candidate.peak) * n // (points - 1) for n in range(points)
        ]
        bound = None if asked is None else explorer.planning(None, asked)[0].bound.above_baseline(unplanned)
        if bound is not None and wanted[0] < bound < wanted[-1]:
            wanted = sorted({*wanted, bound})
        found = [within(planning, limit) for limit in wanted]
        if not found[0].fits:
            found[0] = lowest
        step = explorer.step
        return Frontier(
            graph=step.name,
            device=str(step.device),
            baseline=level,
            unplanned_peak=level + plain.planner.stock.peak,
            unplanned_time=plain.seconds,
            least_peak=level + least,
            points=tuple(_points(held, level, wanted, found)),
            reserve=planning.bound.reserve,
        )


def within(planning: Planning, limit: int) -> Choice:
    """The best choice within so many bytes above the baseline; the one with the lowest peak where none is."""
    bounded = dataclasses.replace(planning, bound=dataclasses.replace(planning.bound, bytes=limit, reserve=0))
    return bounded.chosen()[2]


def _points(held: int, level: int, wanted: list[int], found: list[Choice]) -> Iterator[Point]:
    """The points of choices for growing budgets. Where a smaller budget has a faster plan, the larger one has it too.

    held: bytes of a budget that no plan may use.  level: bytes that stand when a step starts.
    """
    best: Choice | None = None
    for limit, choice in zip(wanted, found, strict=True):
        fits = choice.candidate.peak <= limit
        if best is None or (fits and choice.seconds < best.seconds):
            best = choice
        variant, candidate = best.variant, best.candidate
        under = variant.planner.bounds.under(limit)
        yield Point(
            budget=held + limit,
            peak=level + candidate.peak,
            seconds=best.seconds,
            least_seconds=None if under is None else variant.seconds + under.seconds,
            recomputed=_bytes(best, candidate.schedule.recomputed - variant.planner.stock.schedule.recomputed),
            offloaded=_bytes(best, (move.value for move in candidate.moves)),
            tiled=sum(count > 1 for count in variant.cut.shards),
        )


def _bytes(choice: Choice, values: Any) -> int:
    facts = choice.variant.facts
    return sum(facts.values[i].bytes for i in values)


__all__ = ["frontier", "frontier_of", "within"]
