"""Equal layers compiled once: what that saves, and what it costs.

    python -m benchmarks.outline --layers 8 --budgets None,0.6
    python -m benchmarks.outline --families --budgets None,0.5 --rounds 0

For each depth and budget: plain Inductor, memgraph without outlining, memgraph with it. Each is compiled cold in a
process of its own with `benchmarks/allocations.c` preloaded and empty caches, which gives seconds, peaks and gradients;
then all are started again from those caches, and step in turn. A budget that is a share is one of what plain Inductor
allocates, as bytes: a share told to memgraph costs a compilation more; where it is refused without bodies, both arms
get the smallest budget that the refusal names. Rows are added to those that are there, so a depth can be measured by
itself. With `--families` the models are tiny, have dropout where their configuration has a rate, and are deep enough
for four equal layers. With `--symbolic` sizes are symbols, as they are once batches have had two lengths.

CPU seconds are those of the first step, of the process itself and of the C++ compilers that it starts: other work
beside lengthens the wall's. With `--kernels FOLDER` kernels that were compiled in that folder are not compiled again,
but graphs are: the compilers' seconds are then those of kernels that no run before had.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import harness, table
from benchmarks.arm import SEED, Arm
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import allocator_hook, counters
from tests.support.models.sized import Shape, make

SHAPE = Shape(hidden=256, sequence=512, vocabulary=2048)
ARMS = {"memgraph": False, "memgraph, outlined": True}
# By family, how many layers it has (of each stack, where it has two) for four equal ones of each kind: every sixth of
# Gemma 3 has no window, nor has every second one of Gemma 4, of which half share keys and values.
FAMILIES = {"llama": 6, "qwen3": 6, "gemma3": 6, "gemma4": 8, "gpt_oss": 6, "gpt2": 6, "t5": 4, "vit": 6, "bert": 6}
TINY = Shape(hidden=64, sequence=128, vocabulary=256, batch=2, dropout=0.1)
MIB = 1 << 20
OUTLINED = re.compile(r"(\d+) layers of the (\w+) are (\d+) bod(?:y|ies) \((\d+) of (\d+) operators compiled\)")
# Gradients that are zero but for rounding (the bias of BERT's keys) are measured by this share of the largest one.
SMALL = 1e-4
HEADS = ("model", "depth", "budget", "arm", "layers", "bodies", "operators left", "compile s", "CPU s", "C++ CPU s")
HEADS += (
    "planning s",
    "Inductor s",
    "step s",
    "to the first",
    "predicted MiB",
    "measured MiB",
    "to whole",
    "loss",
    "gradients",
)


def main(
    layers: Annotated[str, typer.Option(help="Depths, by commas.")] = "4,8,16,32",
    budgets: Annotated[str, typer.Option(help="None, or a share of what plain Inductor allocates.")] = "None,0.6",
    models: Annotated[str, typer.Option(help="Models, by commas; llama, or all families.")] = "",
    families: Annotated[bool, typer.Option(help="Tiny models, each as deep as its kinds of layers ask for.")] = False,
    hidden: int = SHAPE.hidden,
    sequence: int = SHAPE.sequence,
    dropout: float = 0.0,
    symbolic: Annotated[bool, typer.Option(help="Compile with dynamic=True: sizes are symbols.")] = False,
    rounds: Annotated[int, typer.Option(help="Steps of each arm, in turn; 0 for none.")] = 15,
    kernels: Annotated[str, typer.Option(help="A folder for C++ kernels that all runs share.")] = "",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "outline",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record = harness.Record(name)
    kept = record.folder / "results.json"
    rows = json.loads(kept.read_text())["rows"] if kept.exists() else []
    asked = vars(SHAPE) | {"hidden": hidden, "sequence": sequence, "dropout": dropout}
    with allocator_hook() as environment:
        for model in (models or (",".join(FAMILIES) if families else "llama")).split(","):
            for depth in [FAMILIES[model]] if families else map(int, layers.split(",")):
                shape = (vars(TINY) if families else asked) | {"layers": depth}
                case = {"model": model, "shape": shape, "kernels": kernels, "symbolic": symbolic}
                for group in _groups(case, budgets.split(","), environment, rounds):
                    rows += group
                    page = record.write("Equal layers, compiled once", {"rows": rows}, body(rows))
    print(page)


def _groups(case: Task, budgets: list[str], environment: dict[str, str], rounds: int) -> Iterator[list[Result]]:
    """The rows of all arms for one model, by budget; plain Inductor has none, and is compiled once."""
    with tempfile.TemporaryDirectory() as folder:
        plain = _cold(case | {"arm": "plain Inductor", "outline": None, "budget": None}, folder, environment)
        for budget in budgets:
            found = {"plain Inductor": plain | {"asked": budget}}
            limit = None
            if budget != "None" and "measured" in plain:
                limit = plain["baseline"] + int(float(budget) * plain["measured"])
            for arm, outline in ARMS.items():
                task = case | {"arm": arm, "asked": budget, "outline": outline, "budget": limit}
                found[arm] = _cold(task, folder, environment)
                if not outline and "refused" in found[arm]:
                    limit = found[arm]["refused"]
                    found[arm] = _cold(task | {"budget": limit, "share": "its minimum"}, folder, environment)
            _compared(found)
            tasks = {arm: row for arm, row in found.items() if "failure" not in row and "refused" not in row}
            if rounds and len(tasks) > 1:
                for arm, result in harness.compare("benchmarks.outline:warm", tasks, rounds, _started).items():
                    found[arm]["seconds"] = result["seconds"]
            yield [{key: row[key] for key in row if key not in ("gradients", "folder")} for row in found.values()]


def _cold(task: Task, folder: str, environment: dict[str, str]) -> Result:
    """Compiled in a fresh process with empty caches."""
    task = task | {"folder": tempfile.mkdtemp(dir=folder), "layers": task["shape"]["layers"]}
    row = task | Process("benchmarks.outline:cold", task, None, environment | _caches(task)).result()
    harness.say(str({key: row[key] for key in row if key not in ("shape", "stages", "folder")}))
    return row


def _compared(found: dict[str, Result]) -> None:
    """Loss and gradients against plain Inductor's, and the peak against the one without bodies."""
    first, whole = found["plain Inductor"], found["memgraph"]
    for row in found.values():
        if "gradients" in row and "gradients" in first:
            row["difference"] = _difference(row["gradients"], first["gradients"])
            row["loss_difference"] = abs(row["loss"] - first["loss"]) / abs(first["loss"])
        if row["outline"] and "measured" in row and "measured" in whole:
            row["to_whole"] = row["measured"] / whole["measured"]


def _caches(task: Task) -> dict[str, str]:
    folder = {"TORCHINDUCTOR_CACHE_DIR": f"{task['folder']}/inductor", "MEMGRAPH_CACHE": f"{task['folder']}/memgraph"}
    if not task["kernels"]:
        return folder
    off = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    return folder | off | {"TORCHINDUCTOR_CACHE_DIR": task["kernels"]}


def _started(work: str, task: Task) -> Process:
    return Process(work, task, None, _caches(task))


def _difference(mine: str, theirs: str) -> float:
    """The largest difference of a gradient from plain Inductor's, relative to its norm."""
    one, other = torch.load(mine), torch.load(theirs)
    assert one.keys() == other.keys()
    least = SMALL * max(float(gradient.norm()) for gradient in other.values())
    return max(float((one[n] - other[n]).norm()) / max(float(other[n].norm()), least) for n in one)


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
    if "share" in row:
        head[2] += f" refused, {row['share']}"
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
        *_outlined(row),
        f"{row['compile']:.1f}",
        table.number(row.get("cpu"), ".1f"),
        table.number(row.get("compilers"), ".1f"),
        f"{stages['planning']:.1f}" if "planning" in stages else "",
        f"{lowered:.1f}" if lowered else "",
        table.number(statistics.median(steps) if steps else None),
        table.number(ratio),
        f"{row['predicted'] / MIB:.2f}" if row["predicted"] else "",
        f"{row['measured'] / MIB:.2f}",
        table.number(row.get("to_whole"), ".4f"),
        table.number(row.get("loss_difference"), ".0e"),
        table.number(row.get("difference"), ".0e"),
    ]


def _outlined(row: Result) -> tuple[str, str, str]:
    """Layers, bodies and operators left of forward + backward; why there are none in place of the first."""
    found = OUTLINED.findall(row["note"])
    if not found:
        return "; ".join(row.get("refusals", ())), "", ""
    layers, _, bodies, left, operators = zip(*found, strict=True)
    parts = (f"{mine} of {whole}" for mine, whole in zip(left, operators, strict=True))
    return " + ".join(layers), " + ".join(bodies), " + ".join(parts)


# Within the process of one arm


class OutlineArm(Arm):
    """A model and its loss, compiled with an arm's options."""

    def __init__(self, task: Task) -> None:
        self.case, self.device = make(task["model"], Shape(**task["shape"])), "cpu"
        options: dict[str, Any] = {"backend": "inductor"}
        dynamic = True if task["symbolic"] else None
        if task["outline"] is not None:
            options = {
                "backend": "memgraph",
                "options": {"budget": task["budget"], "outline": task["outline"], "progress": False},
            }
        self.loss = torch.compile(self.case.loss, dynamic=dynamic, **options)

    def ready(self) -> Result:
        self.step()
        return {}

    def loss_of_step(self) -> float:
        """The loss of a step, whose gradients stay."""
        torch.manual_seed(SEED)
        loss = self.loss(*self.case.inputs)
        loss.backward()
        return float(loss.detach())


def cold(task: Task) -> Iterator[Result]:
    """Seconds of the first step, peaks above what stands, and where the gradients lie."""
    import memgraph

    arm, hook = OutlineArm(task), counters()
    hook.mh_cur.restype = hook.mh_peak.restype
    start, busy = time.perf_counter(), _cpu_seconds()
    try:
        loss = arm.loss_of_step()
    except memgraph.BudgetError as error:
        yield {"refused": f"refused: {error.minimum}"}
        return
    seconds = time.perf_counter() - start
    cpu, compilers = (now - before for now, before in zip(_cpu_seconds(), busy, strict=True))
    gradients = str(Path(task["folder"]) / "gradients.pt")
    given = arm.case.model.named_parameters()
    torch.save({name: one.grad for name, one in given if one.grad is not None}, gradients)
    arm.seconds()
    base = hook.mh_cur()
    hook.mh_reset()
    arm.step()
    peak = hook.mh_peak() - base
    report = None if task["outline"] is None else memgraph.report()
    given = [*arm.case.model.parameters(), *arm.case.model.buffers(), *arm.case.inputs]
    yield {
        "compile": seconds,
        "cpu": cpu,
        "compilers": compilers,
        "loss": loss,
        "measured": peak,
        "baseline": sum(tensor.nbytes for tensor in given),
        "gradients": gradients,
        **_told(report),
    }


def _cpu_seconds() -> tuple[float, float]:
    """What all threads of this process have computed, and what the compilers that it started have."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime, theirs.ru_utime + theirs.ru_stime


def _told(report: Any) -> Result:
    """What memgraph's report says; nothing where there is none."""
    if report is None:
        return {"predicted": None, "stages": [], "attempts": None, "note": "", "refusals": []}
    note = next((n.removeprefix("outlined: ") for n in report.notes if n.startswith("outlined")), "")
    outside = [f"{one.what}: {one.reason}" for one in report.refusals if one.what.startswith("outline")]
    return {
        "predicted": report.above,
        "stages": list(report.stages),
        "attempts": report.attempts,
        "note": note,
        "refusals": outside,
    }


def warm(task: Task) -> Iterator[Result]:
    """Compiles from the caches that `cold` has filled, then steps when told to."""
    return OutlineArm(task).results()


if __name__ == "__main__":
    typer.run(main)
