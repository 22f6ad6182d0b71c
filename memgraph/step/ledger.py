"""The ledger of the run: the launches of the last rounds in their order, and what they say of a step.

It holds what `Launched` knows: numbers, and weak references to graphs. Nothing is computed before somebody asks.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

import torch

from memgraph.base import compat
from memgraph.machine.measure import counters
from memgraph.reporting.report import Report
from memgraph.reporting.step_figures import (
    GraphFigures,
    LaunchFigures,
    OptimizerFigures,
    OutsideFigures,
    RoundFigures,
)
from memgraph.reporting.step_report import StepReport
from memgraph.step.launched import Launched
from memgraph.step.recording import Moment
from memgraph.step.telling import between, step_peaks

ROUNDS = 8  # that are kept: the last ones
RECORDED = 4  # rounds before these that are kept: the last ones that were recorded

Round = tuple[int, list[Launched]]
"""A round, counted from 1, and its launches."""


class Ledger:
    """The last rounds of a run, on all of its devices."""

    def __init__(self) -> None:
        self.rounds: collections.deque[Round] = collections.deque(maxlen=ROUNDS)
        """Oldest first; the last one may go on."""
        self.recorded: collections.deque[Round] = collections.deque(maxlen=RECORDED)
        """Of the rounds before these, those that were recorded."""
        self._begun = 0

    def begin(self, launches: list[Launched]) -> None:
        """A round begins, to which launches will be added."""
        self._begun += 1
        if len(self.rounds) == ROUNDS and any(launch.marks for launch in self.rounds[0][1]):
            self.recorded.append(self.rounds[0])
        self.rounds.append((self._begun, launches))

    def report(self, device: torch.device | None = None) -> StepReport:
        """What the ledger says of a step on a device; without one, on that of the newest launch.

        Raises LookupError where nothing has been launched there.
        """
        everything = [(number, list(launches)) for number, launches in (*self.recorded, *self.rounds)]
        there = [x for _, launches in everything for x in launches if device is None or _is_on(x, device)]
        if not there:
            where = "" if device is None else f" on {device}"
            raise LookupError(
                f"no graph that is trained under a budget in bytes has been launched in this process{where}"
            )
        newest = there[-1]
        where = newest.device
        rounds = [(number, [x for x in launches if x.device == where]) for number, launches in everything]
        rounds = [(number, launches) for number, launches in rounds if launches]
        last = rounds[-1][1]
        # Rounds of a model that is gone are no part of the present one's steps.
        rounds = [(number, launches) for number, launches in rounds if _is_gone(launches) is _is_gone(last)]
        return StepReport(
            device=str(where),
            budget=newest.budget,
            reserve=newest.reserve,
            level=last[0].entry.level,
            to_come=max(launch.entry.to_come for launch in last),
            rounds=tuple(_round(number, launches) for number, launches in rounds),
            graphs=tuple(_graphs(last)),
            optimizers=tuple(_optimizers(last)),
            grown=tuple(_grown(last[0])),
            highest=counters(where).highest if where.type == "cuda" else None,
            notes=tuple(_notes(where, [launches for _, launches in rounds])),
            rank=compat.rank_here(),
            parts=tuple(_parts(last)),
        )


def _is_gone(launches: Sequence[Launched]) -> bool:
    """Whether no graph of a round is there any more."""
    return all(launch.graph() is None for launch in launches)


def _graphs(launches: Sequence[Launched]) -> list[GraphFigures]:
    found = []
    for graph in dict.fromkeys(launch.graph() for launch in launches):
        if graph is None:
            continue
        variants = list(graph.variants)
        reports = [variant.report for variant in variants if variant.report is not None]
        newest = next((v.report for v in reversed(variants) if v.report is not None), None)
        found.append(
            GraphFigures(
                graph=graph.name,
                launches=sum(launch.graph() is graph for launch in launches),
                plans=len(variants),
                made=graph.made,
                unplanned_above=newest.unplanned_peak - newest.level if newest is not None else None,
                source_of_unplanned_peak=newest.source_of_unplanned_peak if newest is not None else None,
                off=sum(not report.as_predicted for report in reports),
            )
        )
    return found


def _parts(launches: Sequence[Launched]) -> Iterator[Report]:
    """What was planned for each graph of a round: the plan that it ran in its last launch."""
    for graph in dict.fromkeys(launch.graph() for launch in launches):
        variants = [launch.variant() for launch in launches if launch.graph() is graph and launch.variant is not None]
        reports = [variant.report for variant in variants if variant is not None and variant.report is not None]
        yield from reports[-1:]


def _grown(launch: Launched) -> list[tuple[str, int]]:
    """What stands when a step begins, and did not when its first graph was first launched: kinds and bytes."""
    graph = launch.graph()
    first = None if graph is None else graph.first
    names = ", ".join(sorted({forecast.name for forecast in launch.forecasts})) or "an optimizer"
    return [] if first is None else list(launch.entry.grown_since(first, names))


def _is_on(launch: Launched, device: torch.device) -> bool:
    """Whether a launch was on `device`, which may leave out its number."""
    return launch.device.type == device.type and device.index in (None, launch.device.index)


def _round(number: int, launches: Sequence[Launched]) -> RoundFigures:
    return RoundFigures(
        number=number,
        launches=tuple(map(_launch, launches)),
        outside=tuple(figures for launch in launches for figures in _outside(launch)),
        recorded=all(launch.recorded for launch in launches),
    )


def _launch(launch: Launched) -> LaunchFigures:
    envelope, before = launch.envelope, launch.before_backward
    returned, ended = launch.marks.get(Moment.RETURN), launch.marks.get(Moment.END)
    return LaunchFigures(
        graph=launch.name,
        sizes=launch.entry.sizes,
        level=launch.entry.level,
        held=envelope.held if envelope is not None else None,
        predicted_forward=launch.entry.level + envelope.forward if envelope is not None else None,
        predicted_backward=before + envelope.backward if envelope is not None and before is not None else None,
        measured_forward=returned.peak if returned is not None and returned.seen else None,
        measured_backward=ended.peak if ended is not None and ended.seen else None,
        predicted_above=launch.predicted_above,
        measured_above=launch.measured_above,
        larger=launch.larger,
    )


def _outside(launch: Launched) -> list[OutsideFigures]:
    """What ran before the forward and before the backward of a launch, where that was recorded."""
    marks = [launch.marks.get(moment) for moment in (Moment.FORWARD, Moment.BACKWARD)]
    return [
        OutsideFigures(*between(mark), mark.level, mark.peak)
        for mark in marks
        if mark is not None and mark.seen and mark.since is not None
    ]


def _optimizers(launches: Sequence[Launched]) -> list[OptimizerFigures]:
    """The optimizers that the graphs of a round know of, as they stand when it begins."""
    found: dict[int, OptimizerFigures] = {}
    for launch in launches:
        for forecast, peak in step_peaks(launch.entry.level - launch.entry.others, launch.forecasts):
            found.setdefault(
                forecast.identity,
                OptimizerFigures(
                    name=forecast.name,
                    made=forecast.state_bytes - forecast.state_to_come,
                    to_come=forecast.state_to_come,
                    temporaries=forecast.step_bytes,
                    peak=peak,
                    method=forecast.method.value,
                    note=forecast.note,
                ),
            )
    return list(found.values())


def _notes(device: torch.device, rounds: Sequence[Sequence[Launched]]) -> list[str]:
    """What a reader should know before trusting the figures."""
    notes = []
    if device.type == "cpu":
        notes.append(
            "the CPU has no allocator statistics: levels are counted at few moments, and a peak is measured in the "
            "first launches of each plan alone"
        )
    elif device.type == "cuda":
        notes.append("counters of the allocator show a peak only where it is higher than all before it")
    if not any(launch.marks for launches in rounds for launch in launches):
        notes.append("no launch of these was recorded: a profiler ran, or they came from another thread")
    if any(launch.envelope is None for launches in rounds for launch in launches):
        notes.append("generated code of a graph could not be read: what its plan takes is not known")
    return notes
