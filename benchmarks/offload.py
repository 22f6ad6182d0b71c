"""Offload on one machine: allocated and resident memory, step time, and whether anything grows over many steps.

    python -m benchmarks.offload --help

    inductor           nothing leaves
    memgraph disk      memgraph under a budget, the scratch folder as its only lever
    memgraph both      the same with recompute beside it
    memgraph again     the same budget by recompute alone
    memgraph host      host memory as the only lever (on CUDA; on the CPU it would save nothing)
    memgraph staged    as memgraph disk, never by GPUDirect (on CUDA, where asked for)
    memgraph direct    as memgraph disk, always by GPUDirect (the same)
    save_on_cpu        Inductor under torch.autograd.graph.save_on_cpu(pin_memory=True) (on CUDA)
    hooks              Inductor, its saved tensors through saved_tensors_hooks, torch.save and torch.load, one at a time

Each arm is a process of its own that compiles, runs a step, and then steps in turn with the others. Resident memory is
the kernel's high-water mark (VmHWM, what ru_maxrss reads), reset after the compilation. MALLOC_MMAP_THRESHOLD_ is 1 MiB
in every arm: without it glibc keeps freed blocks of up to 32 MiB, and what is resident says nothing.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from tests.support.models.sized import Shape

WORK = "benchmarks.offload_arm:work"
ARMS = {
    "cpu": ("inductor", "memgraph disk", "memgraph both", "memgraph again", "hooks"),
    "cuda": ("inductor", "memgraph host", "memgraph disk", "memgraph both", "memgraph again", "save_on_cpu"),
}
HEADS = ("arm", "allocated", "of first", "resident", "of first", "time", "added s", "moved", "predicted", "attempts")


def main(
    model: str = "llama",
    layers: int = 8,
    hidden: int = 512,
    sequence: int = 4096,
    vocabulary: int = 512,
    batch: int = 1,
    budget: Annotated[float, typer.Option(help="Of what Inductor allocates above the start of a step.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm, in turn.")] = 5,
    flat: Annotated[int, typer.Option(help="Steps of one more run that watches for growth; 0 for none.")] = 0,
    arms: Annotated[str, typer.Option(help="Separated by commas; by default those that the device has.")] = "",
    device: str = "cpu",
    dtype: str = "float32",
    scratch: Annotated[str, typer.Option(help="Folder for the files; by default one that is made and removed.")] = "",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-offload",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads(device)
    shape = Shape(layers, hidden, sequence, vocabulary, batch)
    record = harness.Record(name, device)
    data: dict[str, Any] = {"shape": vars(shape), "budget": budget}
    with tempfile.TemporaryDirectory(dir=scratch or None, prefix="memgraph-offload-") as folder:
        task = {"model": model, "shape": vars(shape), "budget": budget, "scratch": folder}
        task |= {"device": device, "dtype": dtype}
        if rounds:
            tasks = {arm: task | {"arm": arm} for arm in (arms.split(",") if arms else ARMS[device])}
            jobs = harness.compiling_jobs(device)

            def write(results: dict[str, Result]) -> None:
                data["arms"] = list(results.values())
                record.write("Offload", data, f"{shape}\n\n{body(data)}")

            write(harness.compare(WORK, tasks, rounds, start, "memory", jobs=jobs, after_round=write))
        if flat:
            data["flat"] = watch(task | {"arm": "memgraph both"}, flat)
        for arm in data.get("arms", ()):
            if trace := arm.pop("trace", None):  # of the newest memgraph arm; opens in Perfetto
                shutil.copy(trace, record.folder / "trace.json")
    print(record.write("Offload", data, f"{shape}\n\n{body(data)}"))
    print(record.folder)
    if any("failure" in arm for arm in data.get("arms", ())):
        raise typer.Exit(1)


def start(work: str, task: Task) -> Process:
    """A process whose resident memory means something."""
    return Process(work, task, environment={"MALLOC_MMAP_THRESHOLD_": str(table.MIB)})


def watch(task: Task, steps: int) -> list[Result]:
    """What one arm holds after each of many steps."""
    process = start(WORK, task)
    answers = [process.result(), *(process.ask("hold") for _ in range(steps))]
    process.close()
    if failed := next((answer["failure"] for answer in answers if "failure" in answer), None):
        raise RuntimeError(failed)
    return answers[1:]


def body(data: dict[str, Any]) -> str:
    """The page below its headline."""
    parts = []
    if arms := data.get("arms"):
        parts.append(
            "MiB above the start of the step; time relative to the first arm's in the same round, median; moved: MiB a "
            "step out and back."
        )
        measured = [arm for arm in arms if "resident" in arm]
        parts.append(table.markdown(HEADS, [cells(arm, arms[0]) for arm in measured]))
        differing = [arm for arm in measured if "difference" in arm]
        lines = [f"{arm['arm']}: gradients differ by {arm['difference']:.1e} (relative)." for arm in differing]
        lines += [f"{arm['arm']} failed: {arm['failure']}" for arm in arms if "failure" in arm]
        parts.append("\n".join(lines))
    if held := data.get("flat"):
        parts.append(f"{len(held)} steps, after the 2nd, the {len(held) // 2}th and the last, MiB:")
        shown = (1, len(held) // 2 - 1, len(held) - 1)
        lines = [[str(step + 1), *(table.mib(size, 2) for size in held[step].values())] for step in shown]
        parts.append(table.markdown(["step", *held[0]], lines))
    return "\n\n".join(parts)


def cells(arm: Result, first: Result) -> list[str]:
    """The row of an arm, in the order of HEADS."""
    pairs = list(zip(arm["seconds"], first["seconds"], strict=True))
    ratio = statistics.median(mine / base for mine, base in pairs)
    added = statistics.median(mine - base for mine, base in pairs)
    sizes = [
        text for key in ("allocated", "resident") for text in (table.mib(arm[key]), f"{arm[key] / first[key]:.3f}")
    ]
    times = [f"{ratio:.2f}", f"{added:.2f}", table.mib(arm.get("moved", 0), 0)]
    return [arm["arm"], *sizes, *times, table.mib(arm.get("predicted", 0)), str(arm.get("attempts", ""))]


if __name__ == "__main__":
    typer.run(main)
