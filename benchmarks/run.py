"""memgraph beside its peers: step time against measured peak, one table and one picture (`make bench`).

    python -m benchmarks.run --help

Every arm is a fresh process that compiles, measures the peak of one step, and then steps in turn with the others
(benchmarks/harness.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TextIO

import typer

from benchmarks import harness, run_page
from benchmarks.harness import Process, Result, Task
from benchmarks.run_arm import SMALLEST
from tests.support.models.sized import FAMILIES, Shape

ACTIVATION_BUDGETS = (0.75, 0.5, 0.25, 0.1, 0.05)
MEMGRAPH_BUDGETS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.31)
REFERENCE = "inductor"


def arm(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    """An arm as data; what is not given is off."""
    off = {"checkpointing": False, "activation_memory_budget": None, "budget": None}
    return {"name": name, "kind": kind} | off | settings


def all_arms(budgets: list[float], activation_budgets: list[float]) -> list[dict[str, Any]]:
    """Every arm, in the order of the table."""
    return [
        arm("eager", "eager"),
        arm("eager+checkpointing", "eager", checkpointing=True),
        arm(REFERENCE, "inductor"),
        arm("inductor+checkpointing", "inductor", checkpointing=True),
        *(
            arm(f"activation_memory_budget {budget:g}", "inductor", activation_memory_budget=budget)
            for budget in activation_budgets
        ),
        *(arm(f"memgraph {budget:g}", "memgraph", budget=budget) for budget in budgets),
        arm(SMALLEST, "memgraph"),
    ]


def measure(
    arms: list[dict[str, Any]],
    task: Task,
    rounds: int,
    group: int,
    log: TextIO,
    write: Callable[[list[Result]], object] = lambda results: None,
) -> list[Result]:
    """All arms, in groups that fit into memory; each group has an Inductor of its own to be compared with.

    write: is given the results after each round.
    """
    reference = next(one for one in all_arms([], []) if one["name"] == REFERENCE)
    others = [one for one in arms if one["name"] != REFERENCE]
    groups = [others[i : i + group] for i in range(0, len(others), group)] or [[]]
    found: dict[str, Result] = {}

    def after_round(results: dict[str, Result]) -> None:
        _compare(results)
        both = results | found  # the first group's Inductor is the one that is shown
        write([both[one["name"]] for one in arms if one["name"] in both])

    for members in groups:
        tasks = {one["name"]: task | {"arm": one} for one in (reference, *members)}
        results = harness.compare(
            "benchmarks.run_arm:work",
            tasks,
            rounds,
            lambda work, task: Process(work, task, log),
            jobs=harness.compiling_jobs(task["device"]),
            after_round=after_round,
        )
        _compare(results)
        found = results | found
    return [found[one["name"]] for one in arms]


def _compare(results: dict[str, Result]) -> None:
    """Add to each result how it stands to Inductor's.  Raises RuntimeError where that did not run."""
    base = results[REFERENCE]
    if not base["seconds"]:
        raise RuntimeError(f"{REFERENCE} did not run: {base.get('failure')}; the workers' log says more")
    for result in results.values():
        result["ratios"] = harness.ratios(result, base)
        if "loss" in result:
            for key in ("loss", "gradient_norm"):
                result[f"{key}_error"] = abs(result[key] - base[key]) / abs(base[key])


def main(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "llama",
    layers: int = 8,
    hidden: int = 512,
    sequence: int = 2048,
    vocabulary: int = 8192,
    batch: int = 1,
    dtype: str = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm.")] = 5,
    group: Annotated[int, typer.Option(help="Arms that are in memory at a time, Inductor apart.")] = 9,
    arms: Annotated[str, typer.Option(help="Only arms that start with one of these, by commas.")] = "",
    budgets: Annotated[str, typer.Option(help="memgraph's budgets.")] = ",".join(map(str, MEMGRAPH_BUDGETS)),
    activation_budgets: Annotated[str, typer.Option(help="activation_memory_budget.")] = ",".join(
        map(str, ACTIVATION_BUDGETS)
    ),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "",
) -> None:
    """Measure, print the table, and write it with a picture to benchmarks/results."""
    chosen = all_arms(_floats(budgets), _floats(activation_budgets))
    if arms:
        wanted = tuple(part.strip() for part in arms.split(","))
        chosen = [one for one in chosen if one["name"] == REFERENCE or one["name"].startswith(wanted)]
    harness.use_few_threads(device)
    shape = Shape(layers, hidden, sequence, vocabulary, batch)
    task = {"model": model, "shape": vars(shape), "device": device, "dtype": dtype}
    record = harness.Record(name or f"{device}-{model}", device)
    data: dict[str, Any] = {"machine": record.machine, **task, "rounds": rounds}

    def write(results: list[Result]) -> str:
        data["results"] = results
        return record.write(run_page.title(data), data, run_page.body(data))

    with record.log() as log:
        results = measure(chosen, task, rounds, group, log, write)
    print(write(results))
    try:
        run_page.picture(data, record.folder / "time-and-peak.png")
    except ImportError as missing:  # a GPU machine without a network has what it has
        print(f"no picture: {missing}")
    print(record.folder)
    if any("failure" in result for result in results):
        raise typer.Exit(1)


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    typer.run(main)
