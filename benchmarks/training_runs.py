"""Is the budget kept in every step of a run? Peaks by a hook on the allocator, which memgraph does not know.

    python -m benchmarks.training_runs --only adamw,lengths

Each run is a process of its own with `benchmarks/allocations.c` preloaded. A Llama (or a chain of blocks, or a model of
another family) is trained by plain Inductor and under each budget; the table has the peaks of forward and backward in
some steps, the largest of all, the plans that were made (how many late, and how often graphs were lowered for all of
them), the median seconds of the later half of the steps, and the largest difference of a loss from plain Inductor's.
Where a budget is refused, the smallest one that the error names is run as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, table, training_loops
from benchmarks.harness import Process, Result, Task

MIB = 1 << 20
LONGEST = training_loops.SHAPES["lengths"].tokens
# What is done, the budgets (in MiB, or as a share of what plain Inductor's largest step reaches), and other options.
# Budgets in MiB and shapes are those that were broken when users tried memgraph first.
RUNS: dict[str, list[tuple[int | float, dict[str, Any]]]] = {
    "adamw": [(120, {}), (90, {"tile": True})],
    "adamw_late": [(120, {})],
    "gradients_kept": [(140, {})],
    "accumulation": [(60, {})],
    "one_break": [(75, {}), (55, {})],
    "two_breaks": [(75, {})],
    "layers_one_by_one": [(70, {}), (23, {}), (0.6, {}), (0.4, {}), (0.25, {}), (0.25, {"tile": True})],
    "layers_at_once": [(0.6, {}), (0.4, {}), (0.25, {}), (0.25, {"tile": True})],
    "growing_lengths": [(40, {})],
    "lengths": [
        (0.6, {}),
        (0.6, {"largest_size": LONGEST}),
        (0.55, {"tile": True}),
        (0.55, {"tile": True, "largest_size": LONGEST}),
    ],
} | {family: [(0.6, {}), (0.4, {"tile": True}), (0.25, {"tile": True})] for family in training_loops.FAMILIES}
STEPS = {"lengths": 200}
FEW = 50  # steps of the others
SHOWN = (0, 1, 2, 4, FEW - 1)  # steps
LATE = 20  # steps, after which few plans should be made
REFUSALS = 4  # the budget that an error names is the next one, at most so often
HEADS = ("run", "budget", *(f"step {n + 1}" for n in SHOWN), "largest")
HEADS += ("plans", "late", "lowered", "seconds", "losses")


def main(
    only: Annotated[str, typer.Option(help="Which runs, by commas.")] = ",".join(RUNS),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-training-runs",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with allocator_hook() as environment:
        for run in only.split(","):
            plain = _run({"run": run, "budget": None, "options": {}}, environment)
            rows.append(plain)
            for budget, options in RUNS[run]:
                size = budget * MIB if isinstance(budget, int) else int(budget * max(plain["peaks"]))
                task = {"run": run, "budget": size, "options": options}
                for _ in range(REFUSALS + 1):
                    row = compared(_run(task, environment), plain)
                    rows.append(row)
                    if "refused" not in row:
                        break
                    task = task | {"budget": row["refused"]}
                print(record.write("Training runs", {"rows": rows}, body(rows)), flush=True)


@contextlib.contextmanager
def allocator_hook() -> Iterator[dict[str, str]]:
    """The environment of a process whose allocator is counted."""
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "allocations.so"
        source = Path(__file__).with_name("allocations.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(hook), "-ldl", "-lpthread"], check=True)
        yield {"LD_PRELOAD": str(hook)}


def _run(task: Task, environment: dict[str, str]) -> Result:
    (row,) = Process("benchmarks.training_runs:measure", task, None, environment).results()
    if "failure" in row:
        raise RuntimeError(f"{task}: {row['failure']}")
    return task | row


def compared(row: Result, plain: Result) -> Result:
    """The row of a run, with the largest difference of a loss from plain Inductor's, relative to the largest of these.

    (GRPO's first loss is zero.)
    """
    if "losses" in row:
        pairs = zip(row["losses"], plain["losses"], strict=True)
        largest = max(max(map(abs, plain["losses"])), 1e-30)
        row["difference"] = max(abs(mine - theirs) for mine, theirs in pairs) / largest
    return row


def body(rows: list[Result]) -> str:
    """The table; peaks in MiB."""
    return table.markdown(HEADS, [cells(row) for row in rows])


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    budget = "plain Inductor" if row["budget"] is None else f"{row['budget'] / MIB:.1f}"
    name = ", ".join([row["run"], *(f"{key}={value}" for key, value in row.get("options", {}).items())])
    if "refused" in row:
        return [name, budget, f"refused: {row['refused'] / MIB:.1f}", *[""] * (len(HEADS) - 3)]
    peaks = [peak / MIB for peak in row["peaks"]]
    shown = [f"{peaks[step]:.1f}" for step in SHOWN]
    difference = f"{row['difference']:.0e}" if "difference" in row else ""
    made = row.get("made", ())
    counts = [row["plans"], sum(step > LATE for step, _ in made), sum(lowered for _, lowered in made)]
    seconds = f"{statistics.median(row['seconds'][len(peaks) // 2 :]):.3f}"  # by then the plans are made
    return [name, budget, *shown, f"{max(peaks):.1f}", *map(str, counts), seconds, difference]


# Within the process of one run


def measure(task: Task) -> Iterator[Result]:
    """Losses and peaks of the steps of one run, or the smallest budget of its error."""
    import torch

    torch.manual_seed(0)
    number = STEPS.get(task["run"], FEW)
    yield measured(training_loops.steps(task["run"], number, backend(task["budget"], **task["options"])))


def backend(budget: int | None, **options: Any) -> dict[str, Any]:
    """The arguments of `compile`: plain Inductor without a budget."""
    if budget is None:
        return {"backend": "inductor"}
    return {"backend": "memgraph", "options": {"budget": budget} | options}


def counters() -> ctypes.CDLL:
    """The hook of this process: `mh_peak()`, bytes, since `mh_reset()`."""
    hook = ctypes.CDLL(None)
    hook.mh_peak.restype = ctypes.c_long
    return hook


def measured(steps: Iterable[Callable[[], float]]) -> Result:
    """Losses, peaks and seconds of steps, or the smallest budget of an error, and how many steps came before it."""
    import memgraph

    hook = counters()
    losses: list[float] = []
    peaks: list[int] = []
    seconds: list[float] = []
    made: list[tuple[int, int]] = []  # for each plan the step, and how often the graph was lowered for it
    try:
        for step in steps:
            hook.mh_reset()
            start = time.perf_counter()
            losses.append(step())
            seconds.append(time.perf_counter() - start)
            peaks.append(hook.mh_peak())
            made += [(len(losses), report.attempts) for report in memgraph.reports()[len(made) :]]
    except memgraph.BudgetError as error:
        harness.say(str(error))
        return {"refused": error.minimum, "after": len(peaks), "peaks": peaks}
    return {"losses": losses, "peaks": peaks, "seconds": seconds, "made": made, "plans": len(made)}


if __name__ == "__main__":
    typer.run(main)
