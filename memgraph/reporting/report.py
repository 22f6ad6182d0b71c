"""What was planned for one graph, why, and what it is predicted to cost: as text, as JSON, as a picture.

`str(report)` is plain text for logs, as wide as it takes to break no word; `rich.print(report)` fits it to the
terminal, with its titles in bold. How a report is laid out stands in text.py, how it is drawn in picture.py.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memgraph.base.errors import Binding
from memgraph.base.sizes import format_size
from memgraph.planner.decisions import Decision, Refusal, Timeline

if TYPE_CHECKING:  # rich is imported where it is used: a process that prints no report need not load it
    from rich.console import Console, ConsoleOptions, Group

WIDTH = 110  # columns of str(report), unless a name of the model needs more
WRAPPER, SWEEP = "inductor wrapper", "graph sweep"  # where a peak is from: the second is an estimate
KEPT_REPORTS = 256  # a process that compiles for days must not grow without bound


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """One planned graph: frozen, hashable, and JSON gives it back as it was.

    Attributes:
        key: name of the graph under its configuration, in the plan store.
        graph: what a user calls it, such as `"loss_fn [0]"`.  device: such as `"cuda:0"`.
        requested: the budget that was asked for: bytes, a share, `"auto"` or `"None"`.
        budget: bytes that the step may reach, baseline included; None for no bound.
        reserve: bytes of the budget that are held back.
        baseline: bytes allocated when the step starts.
        unplanned_peak: bytes that Inductor's own partition reaches, baseline included.
        predicted_peak: bytes that this plan reaches, baseline included.
        source_of_peak: `"inductor wrapper"` (read from the generated code) or `"graph sweep"` (an estimate).
        source_of_unplanned_peak: the same of `unplanned_peak`. It is read where the graph was lowered as plain Inductor
            has it: for a budget that is a share, and where the plan changes nothing.
        predicted_time, unplanned_time: seconds of one step with this plan, and with Inductor's own partition.
        calibrated: whether these seconds are by rates that were measured on the machine, and not by built-in ones.
        recompute_time: seconds of a step spent on recomputation beyond Inductor's own.
        stall_time: seconds of a step spent waiting for copies to other tiers and back.
        decisions: what happens to each forward value that the backward reads, in the order of the graph.
        refusals: what was asked for and not done.
        timeline, unplanned_timeline: allocated bytes above the baseline, event by event.
        binding: what is live at the predicted peak.
        stages: (name, seconds) of each stage of the compilation, in the order in which they ended.
        notes: what a reader should know before trusting the figures.
        versions: (package, version).
        attempts: how many times the graph was planned and lowered.
        cached: the graph came from a warm cache, and this report from the store.
    """

    key: str
    graph: str
    device: str
    requested: str
    budget: int | None
    reserve: int
    baseline: int
    unplanned_peak: int
    predicted_peak: int
    source_of_peak: str
    predicted_time: float
    unplanned_time: float
    recompute_time: float
    decisions: tuple[Decision, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    timeline: Timeline = Timeline()
    unplanned_timeline: Timeline = Timeline()
    binding: tuple[Binding, ...] = ()
    stages: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    attempts: int = 1
    cached: bool = False
    stall_time: float = 0.0
    source_of_unplanned_peak: str = SWEEP
    calibrated: bool = False

    def bytes_on(self, tier: str) -> int:
        """Bytes of one step's values on a tier, "host" or "nvme": written once a step there, and read once."""
        return sum(decision.bytes for decision in self.decisions if decision.tier == tier)

    @property
    def saved(self) -> int:
        """Bytes by which the plan lowers the peak; negative where it raises it."""
        return self.unplanned_peak - self.predicted_peak

    @property
    def slowdown(self) -> float | None:
        """Predicted time added to a step, as a fraction of the unplanned time; None where that is 0."""
        return self.predicted_time / self.unplanned_time - 1 if self.unplanned_time > 0 else None

    @property
    def summary(self) -> str:
        """The answer to the first question of a reader: how much memory does it save, and at what price?"""
        peak, saved, above = self.unplanned_peak, self.saved, self.unplanned_peak - self.baseline
        about = "about " if self.source_of_unplanned_peak == SWEEP else ""
        if saved < 0 and about:  # an estimate that is too low shows no need for more memory
            text = f"{size_of(self.predicted_peak, self.source_of_peak)}, where plain Inductor is estimated at "
            text = f"peaks at {text}{format_size(peak)}"
        else:
            verb, words = (f"saves {about if saved else ''}", "of") if saved >= 0 else ("needs ", "more than")
            text = f"{verb}{format_size(abs(saved)) if saved else 'nothing'} {words} a peak of {about}"
            text += format_size(peak)
            if saved and peak > 0 and above > 0:
                text += f" = {_percent(abs(saved) / peak)} (above the baseline: {_percent(abs(saved) / above)})"
        if self.slowdown is None:
            return f"{text}; slow-down unknown"
        kind = "slow-down" if self.slowdown >= 0 else "speed-up"
        return f"{text}; predicted {kind} {_percent(abs(self.slowdown))}"

    def to_json(self) -> str:
        """The whole report. Events are rows of phase, name and bytes: a large graph has tens of thousands."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("decisions", "refusals", "binding"):
            data[name] = [vars(item) for item in data[name]]
        for name in ("timeline", "unplanned_timeline"):
            data[name] = data[name].rows()
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Report:
        """What `to_json` wrote. Raises ValueError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            for name, kind in (("decisions", Decision), ("refusals", Refusal), ("binding", Binding)):
                data[name] = tuple(kind(**item) for item in data[name])
            for name in ("timeline", "unplanned_timeline"):
                data[name] = Timeline.from_rows(data[name])
            for name in ("stages", "versions"):
                data[name] = tuple((key, value) for key, value in data[name])
            return cls(**data | {"notes": tuple(data["notes"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a report of this version of memgraph: {error!r}") from error

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw both timelines, the baseline and the budget into `path`: PNG, or what its suffix says."""
        from memgraph.reporting.picture import plot

        plot(self, path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write both timelines as a Chrome trace, for Perfetto; its time axis is the order of events."""
        from memgraph.reporting.picture import trace

        trace(self, path)

    def __repr__(self) -> str:
        peaks = f"{format_size(self.unplanned_peak)} -> {format_size(self.predicted_peak)}"
        return f"<Report {self.graph!r} on {self.device}: {peaks}>"

    def __str__(self) -> str:
        from rich.console import Console

        from memgraph.reporting.text import needed_width

        text, width = io.StringIO(), max(WIDTH, needed_width(self))
        # What rich would find out about its surroundings is fixed: the same text in a log as in a notebook.
        console = Console(file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False)
        console.print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).rstrip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        from memgraph.reporting.text import layout

        yield layout(self, options.max_width)


def size_of(size: int, source: str) -> str:
    """A size as text, marked where its source is an estimate."""
    return f"{'about ' if source == SWEEP else ''}{format_size(size)}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


class ReportLog:
    """The newest reports of a process, oldest first; any thread may add to it."""

    def __init__(self, limit: int = KEPT_REPORTS) -> None:
        self._reports: collections.deque[Report] = collections.deque(maxlen=limit)
        self._lock = threading.Lock()

    def append(self, report: Report) -> None:
        with self._lock:
            self._reports.append(report)

    def newest(self) -> Report:
        """Raises LookupError where there is none."""
        with self._lock:
            if self._reports:
                return self._reports[-1]
        raise LookupError(
            "memgraph has planned no graph in this process yet: torch.compile plans at the first call of the "
            'compiled function, with backend="memgraph" and where an input or a parameter requires a gradient'
        )

    def all(self) -> list[Report]:
        with self._lock:
            return list(self._reports)


_log = ReportLog()


def record(report: Report) -> None:
    """Make `report` the newest of this process."""
    _log.append(report)


def report() -> Report:
    """The report of the newest plan in this process. Raises LookupError where nothing was planned."""
    return _log.newest()


def reports() -> list[Report]:
    """The reports of this process, oldest first; of very many, the newest 256."""
    return _log.all()
