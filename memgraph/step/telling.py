"""What is said while a run goes on: what was measured, and what passes the budget though no plan can help it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable

from memgraph.base.sizes import format_size
from memgraph.reporting import log
from memgraph.step.forecast import OptimizerForecast
from memgraph.step.launched import Launched
from memgraph.step.recording import Mark, Moment

Say = Callable[[Hashable, str], None]
"""Warns with a text, once for each key."""


def measured(launch: Launched, say: Say) -> None:
    """Put what was measured of a launch into the report of its plan, and warn where it passed the budget."""
    above = launch.measured_above
    variant = None if launch.variant is None else launch.variant()
    if above is None or variant is None or launch.envelope is None:
        return
    report = variant.report
    planned = next(iter(variant.envelopes.values()), None)  # reports are of the sizes that a plan was made for
    theirs = launch.envelope == planned and (not launch.larger or above > launch.envelope.peak)
    if report is not None and theirs and above > (report.measured_above or -1):
        variant.report = dataclasses.replace(report, measured_above=above)
        log.amend(report, variant.report)
    peak = launch.measured_peak
    predicted = launch.predicted_peak
    if peak is not None and predicted is not None and peak > launch.budget:
        why = f"it was predicted to reach {format_size(predicted)}"
        if predicted > launch.budget:  # what others leave until its backward, its forward does not know
            why = f"with what else was allocated its plan reaches {format_size(predicted)}"
        say(
            ("launch", launch.graph),
            f"{launch.name} has reached {format_size(peak)}, above its budget of {format_size(launch.budget)}: {why}. "
            "print(memgraph.step_report()) shows the step.",
        )


def step_peaks(level: int, forecasts: Iterable[OptimizerForecast]) -> list[tuple[OptimizerForecast, int]]:
    """What each optimizer's `step()` reaches by its forecast, in bytes.

    level: what is allocated when a step of training begins; to this come all gradients and all state.
    """
    known = {forecast.identity: forecast for forecast in forecasts}.values()
    stands = level + sum(forecast.state_to_come + forecast.gradients for forecast in known)
    return [(forecast, stands + forecast.step_bytes) for forecast in known]


def optimizers(level: int, forecasts: Iterable[OptimizerForecast], budget: int, say: Say) -> None:
    """Warn of optimizers whose step passes the budget by itself: no plan of a graph can help that."""
    for forecast, peak in step_peaks(level, forecasts):
        if peak > budget:
            held = f"{format_size(forecast.step_bytes)} of temporaries"
            say(
                ("optimizer", forecast.name, forecast.step_bytes),
                f"{forecast.name}.step() will reach {format_size(peak)} by its forecast, above the budget of "
                f"{format_size(budget)}: parameters, gradients, all of its state, what else is allocated, and {held}. "
                f"{forecast.note or 'No option of it is known to lower that.'}",
            )


def not_retained(name: str, say: Say) -> None:
    """Warn of a backward that another one may follow, of a graph that was not planned for that."""
    say(
        ("not retained", name),
        f"the backward of {name} runs with retain_graph=True or create_graph=True, and its plan lets saved values go "
        "within it, or has them overwritten: torch refuses such a backward where they are overwritten (it speaks of "
        "donated buffers), and else it takes more than was planned. Option 'retain_graph': True plans for it.",
    )


def between(mark: Mark) -> tuple[str, str]:
    """What ran before a mark, and what after it, to read."""
    after = f"{_part(mark.moment)} of {mark.launch.name}"
    if mark.since is None:
        return "the start", after
    launch, moment = mark.since
    return f"{_part(moment)} of {launch.name}", after


def _part(moment: Moment) -> str:
    return "forward" if moment in (Moment.FORWARD, Moment.RETURN) else "backward"


def outside_alone(
    marks: Iterable[tuple[Mark, int]], room: int, enough: Callable[[], int], reserve: int, say: Say
) -> bool:
    """Warn where what runs outside of the graphs passes the room by itself; whether it does.

    marks: moments at which something had run outside, with what it reaches whatever the graphs hold.
    enough: finds the room that would do.  reserve: bytes of a budget that are no room.
    """
    mark, reached = max(marks, key=lambda pair: pair[1], default=(None, 0))
    if mark is None or reached <= room:
        return False
    before, after = between(mark)
    say(
        ("outside", mark.launch.graph, before, after),
        f"what runs outside of the compiled graphs, between the {before} and the {after}, takes "
        f"{format_size(mark.peak - mark.level)} and reaches {format_size(reached)} whatever the graphs "
        f"hold, above the budget of {format_size(room + reserve)}: no plan can help that. Compile it together with "
        f"the graphs; else a budget of about {format_size(enough() + reserve)} would do. The graphs run at their "
        "lightest.",
    )
    return True


def outside_unknown(launches: Iterable[Launched], say: Say) -> None:
    """Warn where what runs outside of the graphs has passed the budget: no plan knew of it before it was recorded."""
    moments = (Moment.FORWARD, Moment.BACKWARD)  # a mark's peak is that of what ran before it
    marks = [mark for launch in launches for mark in launch.marks.values() if mark.moment in moments and mark.since]
    for mark in sorted(marks, key=lambda mark: -mark.peak)[:1]:
        if mark.seen and mark.peak > mark.launch.budget:
            before, after = between(mark)
            say(
                # A reference to what has gone has no hash, and a round may outlive its graphs.
                ("unknown", mark.launch.graph if mark.launch.graph() is not None else None, before, after),
                f"what runs outside of the compiled graphs, between the {before} and the {after}, has reached "
                f"{format_size(mark.peak)}, above the budget of {format_size(mark.launch.budget)}: it was not known "
                "before. The plans of the steps to come leave room for it, or are refused.",
            )
