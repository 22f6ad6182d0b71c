"""The reports of this process."""

from __future__ import annotations

import collections
import json
import threading

from memgraph.base import compat
from memgraph.reporting.report import Report

ARTIFACT = "memgraph_report"  # the name of each report in torch's structured trace
KEPT_REPORTS = 256  # a process that compiles for days must not grow without bound


class ReportLog:
    """The newest reports, oldest first; any thread may add to it."""

    def __init__(self, limit: int = KEPT_REPORTS) -> None:
        self._reports: collections.deque[Report] = collections.deque(maxlen=limit)
        self._lock = threading.Lock()

    def append(self, report: Report) -> None:
        with self._lock:
            self._reports.append(report)

    def replace(self, old: Report, new: Report) -> None:
        """Put `new` where `old` is; nothing where that is gone."""
        with self._lock:
            for place, report in enumerate(self._reports):
                if report is old:
                    self._reports[place] = new

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
    """Make `report` the newest of this process, and put it into torch's structured trace, where somebody traces."""
    _log.append(report)
    trace(report)


def trace(report: Report) -> None:
    """Put a report into torch's structured trace (`TORCH_TRACE=folder`), as JSON; it is made where somebody traces."""
    compat.trace_data(ARTIFACT, lambda: json.loads(report.to_json()))


def amend(old: Report, new: Report) -> None:
    """Put `new` in the place of `old` in this process's log: of the same plan more is known now."""
    _log.replace(old, new)


def report() -> Report:
    """The report of the newest plan in this process. Raises LookupError where nothing was planned."""
    return _log.newest()


def reports() -> list[Report]:
    """The reports of this process, oldest first; of very many, the newest 256."""
    return _log.all()
