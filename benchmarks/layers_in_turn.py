"""Layers compiled one by one against the whole graph, under the same budget in bytes, steps in turn.

    python -m benchmarks.layers_in_turn --rounds 40

The Llama of `training_runs`, trained with AdamW: seconds are of a forward and its backward, after the steps in which
memgraph looks and plans; peaks, of all steps with what stands from one to the next, are counted by a hook in front of
malloc. A budget is a share of what plain Inductor takes with the layers compiled one by one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

from benchmarks import harness, table, training_loops, training_runs
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import MIB

# A share, and the other options.
BUDGETS: list[tuple[float, dict[str, Any]]] = [(0.6, {}), (0.4, {}), (0.25, {"tile": True})]
RUNS = ("layers_one_by_one", "layers_at_once")
WARM = 6  # steps, in which the plans are made
WORK = "benchmarks.layers_in_turn:work"
HEADS = ("budget", "run", "largest peak", "plans", "median, ms", "to plain Inductor's", "to the whole graph's")


def main(
    rounds: Annotated[int, typer.Option(help="Steps of each arm, in turn.")] = 40,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-layers-in-turn",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with training_runs.allocator_hook() as environment:
        start = partial(Process, log=None, environment=environment)
        arms: dict[str, Task] = {"plain": {"arm": "plain", "run": RUNS[0], "budget": None, "options": {}}}
        largest = harness.compare(WORK, arms, 1, start, "peak")["plain"]["peak"]
        for share, options in BUDGETS:
            budget = {"budget": int(share * largest), "options": options}
            tasks = arms | {run: {"arm": run, "run": run} | budget for run in RUNS}
            found = harness.compare(WORK, tasks, rounds, start, "peak")
            rows += [budget | row for row in _compared(found)]
            print(record.write("Layers in turn", {"rows": rows}, _body(rows)), flush=True)


def _compared(found: dict[str, Result]) -> list[Result]:
    for result in found.values():
        for reference in ("plain", RUNS[1]):
            result[f"to {reference}"] = harness.median(harness.ratios(result, found[reference]))
    return list(found.values())


def _body(rows: list[Result]) -> str:
    return table.markdown(HEADS, [_cells(row) for row in rows])


def _cells(row: Result) -> list[str]:
    budget = ", ".join([f"{row['budget'] / MIB:.1f}", *(f"{key}={value}" for key, value in row["options"].items())])
    if "peak" not in row:
        refused = f"refused: {row['refused'] / MIB:.1f}" if "refused" in row else row["failure"]
        return [budget, row["arm"], refused, *[""] * (len(HEADS) - 3)]
    shown = [f"{row['peak'] / MIB:.1f}", str(row["plans"]), f"{1e3 * statistics.median(row['seconds']):.0f}"]
    return [budget, row["arm"], *shown, *(f"{row[f'to {reference}']:.3f}" for reference in ("plain", RUNS[1]))]


# Within the process of one arm


def work(task: Task) -> Iterator[Result]:
    """A first result when the plans are made, and the answer to each word: `step` and `peak`."""
    import torch

    import memgraph

    torch.manual_seed(0)
    how = training_runs.backend(task["budget"], **task["options"])
    steps = training_loops.steps(task["run"], sys.maxsize, how)
    counters = training_runs.counters()
    counters.mh_reset()
    try:
        for _ in range(WARM):
            next(steps)()
    except memgraph.BudgetError as error:
        yield {"refused": error.minimum}
        return
    yield {}
    for word in map(str.strip, sys.stdin):
        if word == "peak":
            yield {"peak": counters.mh_peak(), "plans": len(memgraph.reports())}
            continue
        step = next(steps)  # after the optimizer's step that belongs to the last one
        start = time.perf_counter()
        step()
        yield {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    typer.run(main)
