"""The page of two plans: their curves over each other, their figures, and the decisions that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memgraph.reporting.differences import Change
from memgraph.reporting.figures import Figures
from memgraph.reporting.page_views import Views
from memgraph.reporting.tables import Row

SIDES = ("first", "second")


def views(
    reports: tuple[Sequence[Figures], Sequence[Figures]],
    changes: Sequence[Change],
    notes: Sequence[str],
    sums: Sequence[Row],
    answer: str,
) -> Views:
    """The difference, and then each graph of the two reports.

    reports: their graphs; none of a plan file.  sums: what both take, to read.  answer: the difference in one line.
    """
    found = Views()
    data: dict[str, Any] = {}
    found.add("diff", name="the difference", title="two plans", summary=answer, diff=data)
    places = [
        [(figures.graph, found.graph(figures, name=f"{side}: {figures.graph}")) for figures in graphs]
        for side, graphs in zip(SIDES, reports, strict=True)
    ]
    data |= {
        "sums": [list(row) for row in sums],
        "curves": [list(pair) for pair in _pairs(*places)],
        "missing": [side for side, graphs in zip(SIDES, reports, strict=True) if not graphs],
        "changes": [_change(change) for change in changes],
        "notes": list(notes),
    }
    return found


def _pairs(first: Sequence[tuple[str, int]], second: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """The graphs that are in both: by name, or where each report has one, whatever it is called."""
    if len(first) == len(second) == 1:
        names = dict.fromkeys((first[0][0], second[0][0]))
        yield " / ".join(names), first[0][1], second[0][1]
        return
    others = dict(second)
    for name, place in first:
        if name in others:
            yield name, place, others[name]


def _change(change: Change) -> dict[str, Any]:
    return {
        "module": change.module,
        "was": change.was,
        "becomes": change.becomes,
        "bytes": change.bytes,
        "members": [[each.name, each.module, each.bytes, *each.seconds] for each in change.members],
    }
