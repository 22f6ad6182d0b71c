"""docs/models.md from what benchmarks/zoo.py has measured."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import machine
from tests.families.trial import level, reached

Result = dict[str, Any]
FINE = "right"
KIB = 1024
MARK = ": its minimum"  # the row after a refusal
HEADER = ("family", "graphs", "Inductor", "no budget", "60 %", "35 %", "35 %, all levers", "gradients", "planning")

INTRODUCTION = """# Models

Written by `make zoo` (benchmarks/zoo.py); do not edit. Tiny models with random weights; each is trained five steps with
AdamW (SGD where gradients are sparse), its state made beforehand, through plain Inductor and through memgraph.

- **Inductor**: KiB that a step of plain Inductor allocates above what is allocated when it starts, measured.
- The next columns: KiB that the same step allocates through memgraph, measured, *of* what the budget allows. A budget
  is a share of the first column. **refused**: before the first step, with a smallest budget; what follows is the step
  under that one; of several graphs an error says "at least", and the last one counts. All levers: recompute, tile,
  offload to a scratch file (values from 4 KiB on).
- **gradients**: the largest difference of an entry from plain Inductor's, relative to the largest entry of that
  gradient, over all columns; right is up to 1e-4 unless it says otherwise below. Losses of five steps: up to 1e-3,
  relative.
- **planning**: seconds of memgraph's planning in the slowest column, all attempts, on this machine as busy as it was.
- Predicted peaks are within 1 % of the measured ones above the baseline, or it says so below.
"""


def page(results: dict[str, Result]) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION.rstrip() + _wider(results), _totals(results.values())]
    by_kind = collections.defaultdict(list)
    for result in results.values():
        by_kind[result["kind"]].append(result)
    for kind, members in by_kind.items():
        lines = [f"## {kind.replace('_', ' ').capitalize()}", "", _line(HEADER), _line("---" for _ in HEADER)]
        parts.append("\n".join([*lines, *(_line(_cells(member)) for member in members)]))
    sections = {"What is wrong": _wrong(results), "What is refused, and why": _refused(results)}
    for title, found in sections.items():
        parts.append("\n".join([f"## {title}", "", *(found or ["Nothing."])]))
    parts.append("\n".join(["## Measured with", "", *_machines(results.values())]))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def verdict(result: Result) -> str:
    """One line on a family, which starts with `FINE` where all is as it should be."""
    if result["failure"]:
        return result["failure"]
    wrong = [f"{row['column']}: {row['failure']}" for row in result["rows"] if row["failure"]]
    if wrong:
        return "; ".join(wrong)
    if len(result["rows"]) < 2:
        return "nothing was measured"
    if not result.get("complete", True):
        return f"not finished: {len(result['rows']) - 1} columns, right so far"
    return f"{FINE}, {len(result['rows']) - 1} columns"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accepted(results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """The rows that memgraph compiled and that ran."""
    for result in results:
        yield from (row for row in result["rows"] if "measured" in row)


def _totals(results: Iterable[Result]) -> str:
    results = list(results)
    fine = sum(verdict(result).startswith(FINE) for result in results)
    accepted = list(_accepted(results))
    bounded = [row for row in accepted if row["budget"] is not None]
    kept = sum(reached(row) <= row["budget"] for row in bounded)
    alone = [row for row in accepted if row["graphs"] == 1]
    near = sum(_error(row) <= 0.01 for row in alone)
    return (
        f"**{fine} of {len(results)} families are right.** Of {len(bounded)} accepted budgets {kept} were kept; "
        f"the predicted peak is within 1 % of the measured one in {near} of {len(alone)} cells of one graph."
    )


def _error(row: dict[str, Any]) -> float:
    return abs(row["predicted"] - row["baseline"] - row["above"]) / row["above"]


def _size(nbytes: int) -> str:
    return f"{nbytes / KIB:,.0f}"


def _cells(result: Result) -> Iterator[str]:
    rows = {row["column"]: row for row in result["rows"]}
    first = rows.get("inductor")
    yield result["family"]
    yield "" if first is None else str(first["graphs"])
    yield "" if first is None else _size(first["above"])
    minimum: dict[int, dict[str, Any]] = {}  # what ran under each smallest budget
    for row in result["rows"]:
        if row["column"].endswith(MARK):
            minimum[row["budget"]] = row
    for column in ("no budget", "60%", "35%", "35%, all levers"):
        yield _cell(rows.get(column), minimum)
    ran = [row for row in result["rows"] if "gradients" in row]
    yield f"{max(row['gradients'] for row in ran):.0e}" if ran else ""
    yield f"{max(row['planning'] for row in ran):.1f}" if ran else ""


def _cell(row: dict[str, Any] | None, minimum: dict[int, dict[str, Any]]) -> str:
    if row is None:
        return ""
    if "refused" in row:
        while row is not None and "refused" in row:
            row = minimum.get(row["refused"])
        return f"refused; {_cell(row, minimum)}"
    if "baseline" not in row:
        return "**failed**"
    text = _size(row["above"])
    if row["budget"] is not None:
        text += f" of {_size(row['budget'] - level(row))}"
    return f"**{text}**" if row["failure"] else text


def _wrong(results: dict[str, Result]) -> list[str]:
    return [f"- {name}: {verdict(result)}" for name, result in results.items() if not verdict(result).startswith(FINE)]


def _refused(results: dict[str, Result]) -> list[str]:
    """The reasons of levers that did nothing, and how many graphs a family breaks into, each once."""
    reasons = collections.defaultdict(list)
    for name, result in results.items():
        given = {reason for row in result["rows"] for reason in [*row.get("refusals", ()), *row.get("why", ())]}
        for reason in sorted(given):
            reasons[reason].append(name)
        graphs = max((row.get("graphs", 1) for row in result["rows"]), default=1)
        if graphs > 1:
            reason = "several graphs: they share the budget, and the predicted peak is that of the largest one alone"
            reasons[reason].append(name)
    return [f"- {reason} ({', '.join(names)})" for reason, names in sorted(reasons.items())]


def _wider(results: dict[str, Result]) -> str:
    """The families that have a tolerance of their own."""
    lines = [
        f"  {name}: gradients up to {result['tolerance']:.0e}; {result['why']}."
        for name, result in results.items()
        if result.get("why")
    ]
    return "\n" + "\n".join(lines) if lines else ""


def _machines(results: Iterable[Result]) -> list[str]:
    """Where the families were measured, with which versions and commit: once for each that differs."""
    where = collections.defaultdict(list)
    for result in results:
        if described := result.get("machine"):
            same = {key: value for key, value in described.items() if key not in ("date", "command")}
            where[tuple(same.items())].append((described["date"], result["family"]))
    lines = []
    for facts, measured in where.items():
        date = max(moment for moment, _ in measured)
        families = "" if len(where) == 1 else f"\n\n{', '.join(name for _, name in measured)}"
        lines.append(machine.headline(dict(facts) | {"date": f"until {date}", "command": "make zoo"}) + families)
    return lines
