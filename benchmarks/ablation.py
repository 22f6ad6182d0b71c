"""What each stage of the planner and each lever brings, measured: steps in turn, peaks counted.

    python -m benchmarks.ablation
    python -m benchmarks.ablation --models llama:4 --fractions 0.4 --rounds 9

The stages are those of planner_gap.py, with recomputation alone: each one's best plan under a budget is written to a
file, and a process compiles it by the option `plan`. The levers are options: each alone, each pair, all. Budgets are
shares of the activation peak as planner_gap.py has them, given in bytes. All arms of one budget step in turn; a ratio
is one of two steps of the same round. The peak of a step is counted above what stands before it. The arms' processes
keep the memory that they free (harness.HEAP_KEPT).
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.arm import Arm, compiled, newest_report
from benchmarks.harness import Process, Result, Task
from benchmarks.planner_gap import Shares, best_of_stages, case_of, step_of

MIB = 1 << 20
REFERENCE = "plain Inductor"
# By arm, which levers the planner may use. Tiles are made in the planner's own number of shards.
LEVERS = {
    "recompute": ("recompute",),
    "offload": ("offload",),
    "tile": ("tile",),
    "recompute, offload": ("recompute", "offload"),
    "recompute, tile": ("recompute", "tile"),
    "offload, tile": ("offload", "tile"),
    "all": ("recompute", "offload", "tile"),
}
HEADS = ("model", "share", "arm", "budget MiB", "predicted MiB", "measured MiB", "slow-down predicted", "measured")


def main(
    models: Annotated[str, typer.Option(help="Models by commas, with their layers.")] = "llama:4,vit:4",
    fractions: Annotated[str, typer.Option(help="Shares of the peak, by commas.")] = "0.6,0.4,0.25,0.15",
    parts: Annotated[str, typer.Option(help="stages, levers, or both by a comma.")] = "stages,levers",
    arms: Annotated[str, typer.Option(help="Of the levers, by semicolons; empty for all.")] = "",
    rounds: Annotated[int, typer.Option(help="Steps of each arm, in turn.")] = 7,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "ablation",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(f"cpu-{name}"), []
    shares = [float(share) for share in fractions.split(",")]
    for model in models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            task = {"model": model, "fractions": shares, "folder": folder, "stages": "stages" in parts.split(",")}
            for budget in list(Process("benchmarks.ablation:plans", task).results()):
                for part in parts.split(","):
                    rows += _measured(model, budget, part, folder, rounds, arms.split(";") if arms else list(LEVERS))
                    page = record.write("What stages and levers bring", {"rows": rows}, body(rows))
    print(page)


def _measured(model: str, budget: Result, part: str, folder: str, rounds: int, arms: list[str]) -> list[Result]:
    """The rows of all arms of one budget: of the stages, or of those of the levers that are in `arms`."""
    given = {"model": model, "share": budget["share"], "bound": budget["bound"]}
    given["unplanned"] = budget["unplanned"]
    tasks: dict[str, Task] = {REFERENCE: {"arm": REFERENCE, "options": None}}
    if part == "stages":
        tasks |= {arm: {"arm": arm, "options": {"plan": path}} for arm, path in budget["files"].items()}
    else:
        tasks |= {
            arm: {"arm": arm, "options": _options(levers, budget, folder)}
            for arm, levers in LEVERS.items()
            if arm in arms
        }
    start = functools.partial(Process, environment=harness.HEAP_KEPT)
    found = harness.compare(
        "benchmarks.ablation:work", {arm: given | task for arm, task in tasks.items()}, rounds, start
    )
    return [given | {"part": part} | row for row in found.values()]


def _options(levers: tuple[str, ...], budget: Result, folder: str) -> dict[str, Any]:
    offload = {"nvme": folder, "min_bytes": 4096} if "offload" in levers else False
    return {"budget": budget["budget"], "recompute": "recompute" in levers, "tile": "tile" in levers} | (
        {"offload": offload} if offload else {}
    )


def body(rows: list[Result]) -> str:
    """The tables, one of stages and one of levers."""
    parts = []
    for part in dict.fromkeys(row["part"] for row in rows):
        cells, first = [], {}
        for row in (row for row in rows if row["part"] == part):
            first = row if row["arm"] == REFERENCE else first
            cells.append(_cells(row, first))
        parts += [f"## By {part}", table.markdown(HEADS, cells)]
    return "\n\n".join(parts)


def _cells(row: Result, first: Result) -> tuple[str, ...]:
    head = (row["model"], f"{row['share']:.0%}", row["arm"], f"{row['bound'] / MIB:.1f}")
    if why := row.get("failure") or row.get("refused"):
        return (*head, str(why)[:60], "", "", "")
    slower = statistics.median(harness.ratios(row, first)) - 1 if row["seconds"] else None
    return (
        *head,
        table.number(row["predicted"] and row["predicted"] / MIB, ".1f"),
        f"{row['peak'] / MIB:.1f}",
        table.number(row["slower"], "+.1%"),
        table.number(slower, "+.1%"),
    )


# Within the process that plans


def plans(task: Task) -> Iterator[Result]:
    """By budget: the bytes that it gives, and the files with the best plans of the planner's stages."""
    import memgraph
    from memgraph.backend.capture import Target
    from memgraph.backend.explore import Explorer, explored
    from memgraph.backend.options import parse_options

    fn, args, kwargs = step_of(task["model"])
    like = memgraph.plan(fn, *args, **kwargs).plan

    def ask(explorer: Explorer) -> list[Result]:
        folder = Path(task["folder"]) if task["stages"] else None
        return [_stages(explorer, like, share, folder) for share in task["fractions"]]

    yield from explored(fn, args, kwargs, Target.of(parse_options({}), None, None), ask)


def _stages(explorer: Any, like: Any, share: float, folder: Path | None) -> Result:
    """The answer for one budget.  like: a plan of the step, of which files take all but the plan of its graph.

    folder: of the files; None for none.
    """
    from memgraph.backend.joint_graph import Choice
    from memgraph.base import compat

    with compat.reading_with({}):
        planning, level = explorer.planning(None)
        plain = planning.variant(planning.cuts.plain)
        bound = Shares.of(plain).bytes(share)
        files = {}
        for arm, candidate in best_of_stages(plain, bound).items() if folder is not None else ():
            if candidate is not None and folder is not None:
                plan = planning.realise(Choice(plain, candidate, fits=True))[1]
                (graph,) = like.graphs
                seconds = plain.seconds + candidate.seconds
                graph = dataclasses.replace(graph, plan=plan, peak=candidate.peak, seconds=seconds)
                files[arm] = str(folder / f"{arm}-{share}.json")
                dataclasses.replace(like, graphs=(graph,)).save(files[arm])
    budget = level + planning.bound.reserve + bound
    return {"share": share, "bound": bound, "budget": budget, "files": files, "unplanned": plain.seconds}


# Within the process of one arm


class AblationArm(Arm):
    """A model and its loss, compiled with an arm's plan or levers."""

    def __init__(self, task: Task) -> None:
        self.case, self.device, self.options = case_of(task["model"]), "cpu", task["options"]
        self.unplanned = task["unplanned"]  # seconds of Inductor's own plan of the graph as it came, its masks whole
        self.loss = compiled(self.case.loss, self.options)

    def ready(self) -> Result:
        from memgraph import BudgetError
        from memgraph.machine.measure import peak_above_start

        try:
            self.step()
        except BudgetError as error:
            return {"refused": f"at least {error.minimum}"}
        self.case.clear()
        peak = peak_above_start(self.step, self.device)
        self.case.clear()
        told: Result = {"predicted": None, "slower": None}
        if self.options is not None:
            report = newest_report()
            told = {"predicted": report.above, "slower": report.predicted_time / self.unplanned - 1}
            told["moved"] = report.bytes_on("nvme")
        return {"peak": peak} | told


def work(task: Task) -> Iterator[Result]:
    """The arm's first result, then seconds of a step each time it is told to."""
    return AblationArm(task).results()


if __name__ == "__main__":
    typer.run(main)
