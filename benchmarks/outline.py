"""Equal layers compiled once: what that saves, and what it costs.

    python -m benchmarks.outline --layers 8 --budgets None,0.6

For each depth and budget: plain Inductor, memgraph without outlining, memgraph with it. Each is compiled cold in a
process of its own with `benchmarks/allocations.c` preloaded and empty caches, which gives seconds, peaks and gradients;
then all are started again from those caches, and step in turn. A budget that is a share is one of what plain Inductor
allocates, as bytes: a share told to memgraph costs a compilation more. Rows are added to those that are there, so a
depth can be measured by itself.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.arm import Arm
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import allocator_hook, counters
from tests.support.models.sized import Shape, make

SHAPE = Shape(hidden=256, sequence=512, vocabulary=2048)
ARMS = {"plain Inductor": None, "memgraph": False, "memgraph, outlined": True}
MIB = 1 << 20
HEADS = (
    "model",
    "layers",
    "budget",
    "arm",
    "bodies",
    "compile s",
    "planning s",
    "Inductor s",
    "step s",
    "to the first",
)
HEADS += ("predicted MiB", "measured MiB", "gradients")


def main(
    layers: Annotated[str, typer.Option(help="Depths, by commas.")] = "4,8,16,32",
    budgets: Annotated[str, typer.Option(help="None, or a share of what plain Inductor allocates.")] = "None,0.6",
    models: Annotated[str, typer.Option(help="Models, by commas.")] = "llama",
    hidden: int = SHAPE.hidden,
    sequence: int = SHAPE.sequence,
    dropout: float = 0.0,
    rounds: Annotated[int, typer.Option(help="Steps of each arm, in turn; 0 for none.")] = 15,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "outline",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record = harness.Record(name)
    kept = record.folder / "results.json"
    rows = json.loads(kept.read_text())["rows"] if kept.exists() else []
    with allocator_hook() as environment:
        for model in models.split(","):
            for depth in map(int, layers.split(",")):
                shape = vars(SHAPE) | {"layers": depth, "hidden": hidden, "sequence": sequence, "dropout": dropout}
                for budget in budgets.split(","):
                    rows += _group(model, shape, budget, environment, rounds)
                    page = record.write("Equal layers, compiled once", {"rows": rows}, body(rows))
    print(page)


def _group(model: str, shape: dict[str, Any], budget: str, environment: dict[str, str], rounds: int) -> list[Result]:
    """The rows of all arms for one model and one budget."""
    found: dict[str, Result] = {}
    limit: int | None = None
    with tempfile.TemporaryDirectory() as folder:
        for arm, outline in ARMS.items():
            task = {
                "model": model,
                "shape": shape,
                "outline": outline,
                "budget": limit,
                "folder": f"{folder}/{len(found)}",
            }
            row = Process("benchmarks.outline:cold", task, None, environment | _caches(task)).result()
            found[arm] = {"arm": arm, "asked": budget, "model": model, "layers": shape["layers"]} | task | row
            harness.say(f"{model} {shape['layers']} {budget} {arm}: {row}")
            if budget != "None" and arm == "plain Inductor" and "measured" in row:
                limit = row["baseline"] + int(float(budget) * row["measured"])
        first = found["plain Inductor"]
        for row in found.values():
            if "gradients" in row and "gradients" in first:
                row["difference"] = _difference(row["gradients"], first["gradients"])
        tasks = {arm: row for arm, row in found.items() if "failure" not in row and "refused" not in row}
        if rounds and len(tasks) > 1:
            for arm, result in harness.compare("benchmarks.outline:warm", tasks, rounds, _started).items():
                found[arm]["seconds"] = result["seconds"]
    for row in found.values():
        row.pop("gradients", None)
        row.pop("folder", None)
    return list(found.values())


def _caches(task: Task) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": f"{task['folder']}/inductor", "MEMGRAPH_CACHE": f"{task['folder']}/memgraph"}


def _started(work: str, task: Task) -> Process:
    return Process(work, task, None, _caches(task))


def _difference(mine: str, theirs: str) -> float:
    """The largest difference of a gradient from plain Inductor's, relative to its norm."""
    import torch

    one, other = torch.load(mine), torch.load(theirs)
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).norm() / other[n].norm().clamp_min(1e-30)) for n in one)


def body(rows: list[Result]) -> str:
    """The table."""
    cells, first = [], {}
    for row in rows:
        if row["arm"] == "plain Inductor":
            first = row
        cells.append(_cells(row, first))
    return table.markdown(HEADS, cells)


def _cells(row: Result, first: Result) -> list[str]:
    head = [row["model"], str(row["layers"]), row["asked"], row["arm"]]
    if why := row.get("failure") or row.get("refused"):
        return [*head, str(why)[:60], *[""] * (len(HEADS) - 5)]
    stages: dict[str, float] = {}
    for stage, seconds in row["stages"]:
        stages[stage] = stages.get(stage, 0.0) + seconds
    lowered = sum(seconds for stage, seconds in stages.items() if stage.startswith("Inductor"))
    steps = row.get("seconds", [])
    ratio = statistics.median(harness.ratios(row, first)) if steps and first.get("seconds") else None
    return [
        *head,
        row["note"],
        f"{row['compile']:.1f}",
        f"{stages['planning']:.1f}" if "planning" in stages else "",
        f"{lowered:.1f}" if lowered else "",
        f"{statistics.median(steps):.3f}" if steps else "",
        f"{ratio:.3f}" if ratio else "",
        f"{row['predicted'] / MIB:.2f}" if row["predicted"] else "",
        f"{row['measured'] / MIB:.2f}",
        f"{row['difference']:.0e}" if "difference" in row else "",
    ]


# Within the process of one arm


class OutlineArm(Arm):
    """A model and its loss, compiled with an arm's options."""

    def __init__(self, task: Task) -> None:
        import torch

        self.case, self.device = make(task["model"], Shape(**task["shape"])), "cpu"
        options: dict[str, Any] = {"backend": "inductor"}
        if task["outline"] is not None:
            options = {
                "backend": "memgraph",
                "options": {"budget": task["budget"], "outline": task["outline"], "progress": False},
            }
        self.loss = torch.compile(self.case.loss, **options)

    def ready(self) -> Result:
        self.step()
        return {}


def cold(task: Task) -> Iterator[Result]:
    """Seconds of the first step, peaks above what stands, and where the gradients lie."""
    import torch

    import memgraph

    arm, hook = OutlineArm(task), counters()
    hook.mh_cur.restype = hook.mh_peak.restype
    start = time.perf_counter()
    try:
        arm.step()
    except memgraph.BudgetError as error:
        yield {"refused": f"refused: {error.minimum}"}
        return
    seconds = time.perf_counter() - start
    gradients = str(Path(task["folder"]) / "gradients.pt")
    torch.save({name: given.grad for name, given in arm.case.model.named_parameters()}, gradients)
    arm.seconds()
    base = hook.mh_cur()
    hook.mh_reset()
    arm.step()
    peak = hook.mh_peak() - base
    report = None if task["outline"] is None else memgraph.report()
    given = [*arm.case.model.parameters(), *arm.case.model.buffers(), *arm.case.inputs]
    yield {
        "compile": seconds,
        "measured": peak,
        "baseline": sum(tensor.nbytes for tensor in given),
        "predicted": report and report.above,
        "stages": list(report.stages) if report else [],
        "attempts": report and report.attempts,
        "note": next((n.removeprefix("outlined: ") for n in report.notes if n.startswith("outlined")), "")
        if report
        else "",
        "gradients": gradients,
    }


def warm(task: Task) -> Iterator[Result]:
    """Compiles from the caches that `cold` has filled, then steps when told to."""
    return OutlineArm(task).results()


if __name__ == "__main__":
    typer.run(main)
