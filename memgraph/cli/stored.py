"""`memgraph reports`, `report` and `diff`: what this and past processes have planned, from the plan store."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from memgraph.base.sizes import format_size
from memgraph.cli.outputs import Details, Html, Json, Outputs, Plot, Snapshot, Trace
from memgraph.cli.outputs import show as show_report
from memgraph.cli.terminal import console, fail, show

SHOWN = 12  # letters of a key: enough to tell some hundred apart
REPORT_HELP = """
Show a report again: a plan that this or a past process has kept, or a file.

KEY is the beginning of a key that `memgraph reports` lists, or a file that --json or to_json() wrote. Several are those
of several ranks: a table of their peaks, and with --html a page with a tab for each.

Exit codes: 0 done; 1 a file could not be written; 2 there is no such report, or several begin so."""


def reports(
    most: Annotated[int, typer.Option(min=1, help="how many, those last used first")] = 20,
) -> None:
    """List the reports in the plan store, of past processes too, those last used first."""
    from memgraph.backend.records import stored

    table = Table("key", "last used", "graph", "device", "budget", "peak", "plain Inductor", "step time")
    found = 0
    for item in itertools.islice(stored(), most):
        found += 1
        kept = item.report
        used = datetime.datetime.fromtimestamp(item.used).strftime("%Y-%m-%d %H:%M")
        budget = "none" if kept.budget is None else format_size(kept.budget)
        peaks = (format_size(kept.predicted_peak), format_size(kept.unplanned_peak))
        slower = "" if kept.slowdown is None else f"{kept.slowdown:+.1%}"
        table.add_row(item.key[:SHOWN], used, kept.graph, kept.device, budget, *peaks, slower)
    if not found:
        console.print("no plan is kept yet: a process keeps those that it compiled (`memgraph doctor` says where)")
        return
    show(table)
    console.print("memgraph report KEY shows one of them, and --html FILE makes a page of it")


def report(
    keys: Annotated[list[str], typer.Argument(metavar="KEY|FILE.json...", show_default=False)],
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    trace: Trace = None,
    snapshot: Snapshot = None,
    details: Details = False,
    explain: Annotated[
        str | None, typer.Option(metavar="MODULE", help="why the values of a module, or one value, are where they are")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="write the plan here, for the option `plan`")] = None,
) -> None:
    outputs = Outputs(json=json, html=html, plot=plot, trace=trace, snapshot=snapshot)
    outputs.check()
    if len(keys) > 1 and any((json, plot, trace, snapshot, plan, explain, details)):
        raise fail("of several reports there is a table and --html; allowed beside others: one KEY", 2)
    found = _found(keys[0]) if len(keys) == 1 else _of_ranks(keys)
    outputs.suit(found)
    if explain is None:
        show_report(found, details)
    else:
        show_report(_explained(found, explain), details=False)
    outputs.write(found)
    if plan is not None:
        _save(found, plan)


def _found(key: str) -> Any:
    return _from_file(Path(key)) if _is_file(key) else _from_store(key)


def _of_ranks(keys: list[str]) -> Any:
    """The reports of several ranks, beside each other."""
    from memgraph.reporting.ranks import RankReports

    return RankReports.of(map(_found, keys))


def _explained(found: Any, what: str) -> Any:
    """What a report says of a module; of a step, the first of its graphs that has it."""
    problem: Exception | None = None
    for part in getattr(found, "parts", (found,)):
        try:
            return part.explain(what)
        except LookupError as error:
            problem = error
    raise fail(str(problem) if problem else "the report has no graph of which something is known", 2)


def _save(found: Any, file: Path) -> None:
    if found.plan is None:
        raise fail("the report has no plan: it is of a graph that runs without one, or of an earlier version", 2)
    try:
        found.plan.save(file)
    except OSError as problem:
        raise fail(f"the plan could not be written: {problem}") from problem


DIFF_HELP = """
Compare two plans on one screen: which decisions differ, what each plan takes, and how long a step is.

FIRST, SECOND: a plan file (`report.plan.save`, `memgraph report KEY --plan`), a report file (--json), or the beginning
of a key that `memgraph reports` lists. The page of two reports has their curves over each other.

Exit codes: 0 done; 1 the page could not be written; 2 there is no such plan."""


def diff(
    first: Annotated[str, typer.Argument(metavar="FIRST", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="SECOND", show_default=False)],
    html: Html = None,
) -> None:
    from memgraph.base.errors import PlanError
    from memgraph.reporting.plan_diff import diff as compare

    outputs = Outputs(html=html)
    outputs.check()
    try:
        found = compare(_plan_or_report(first), _plan_or_report(second))
    except PlanError as problem:
        raise fail(str(problem), 2) from problem
    show_report(found, details=False)
    outputs.write(found)


def _plan_or_report(name: str) -> Any:
    """What a plan file, a report file or the beginning of a key stands for.  Raises PlanError for another file."""
    from memgraph.base.errors import PlanError
    from memgraph.planner.step_plan import StepPlan

    if not _is_file(name):
        return _from_store(name)
    try:
        return StepPlan.load(name)
    except PlanError:
        with contextlib.suppress(OSError, ValueError):
            return _read(Path(name))
        raise


def _from_store(key: str) -> Any:
    from memgraph.backend.records import stored

    same = list(itertools.islice(stored(key), 2))
    if not same:
        raise fail(f"no report in the plan store has a key that begins with {key!r}: `memgraph reports` lists them", 2)
    if len(same) > 1:
        raise fail(f"several reports have keys that begin with {key!r}: {', '.join(item.key for item in same)}, ...", 2)
    return same[0].report


def _is_file(name: str) -> bool:
    return name.endswith(".json") or Path(name).is_file()


def _from_file(file: Path) -> Any:
    """As `_read`.  Raises typer.Exit where there is no report."""
    try:
        return _read(file)
    except OSError as problem:
        raise fail(f"{file} cannot be read: {problem}", 2) from problem
    except ValueError as problem:
        raise fail(f"{file} has no report: {problem}", 2) from problem


def _read(file: Path) -> Any:
    """The report, or report of a step, that a file has.  Raises OSError, and ValueError where it has none."""
    from memgraph.reporting.report import Report
    from memgraph.reporting.step_report import StepReport

    text = file.read_text(encoding="utf-8")
    try:
        return Report.from_json(text)
    except ValueError:
        return StepReport.from_json(text)
