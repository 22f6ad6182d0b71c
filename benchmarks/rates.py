"""Are predicted times true?  A step of plain Inductor and one of memgraph under a budget, against what was predicted.

    python -m benchmarks.rates
    python -m benchmarks.rates --models gpt2:2,bert:2 --dropout 0.1

The machine is calibrated first, into a cache of its own. Each model has a process of its own, in which both steps are
compiled and then run in turn. One thread computes, and its processor's seconds are counted, in the calibration too: on
a machine that others use, those of the clock say little. The processes keep the memory that they free
(harness.HEAP_KEPT).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task

MODELS = "llama:4,qwen3:4,gemma3:4,gpt2:4,bert:4,vit:4,t5:2"
HEADS = (
    "model",
    "budget",
    "Inductor: predicted, ms",
    "measured, ms",
    "ratio",
    "planned: predicted, ms",
    "measured, ms",
    "ratio",
)
HEADS += ("slow-down predicted", "measured", "points apart")
LIMIT = 900.0
# Shares that are tried where a budget cannot be kept.
MORE = (0.8, 0.9)


def main(
    models: Annotated[str, typer.Option(help="Models by commas, with their layers.")] = MODELS,
    budget: Annotated[float, typer.Option(help="Share of the activations.")] = 0.6,
    dropout: Annotated[float, typer.Option(help="Share of the activations, and of attention, that is dropped.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Steps of each kind.")] = 9,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "rates",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    record, rows = harness.Record(f"cpu-{name}"), []
    with tempfile.TemporaryDirectory() as cache:
        alone = {"OMP_NUM_THREADS": "1", "MEMGRAPH_CACHE": cache} | harness.HEAP_KEPT
        figures = Process("benchmarks.rates:calibrated", {}, environment=alone).result()
        harness.say(str(figures))
        for model in models.split(","):
            task = {"model": model, "budget": budget, "dropout": dropout, "rounds": rounds}
            for row in Process("benchmarks.rates:steps", task, environment=alone).results(LIMIT):
                harness.say(str(row))
                rows.append({"model": model} | row | {"machine": figures})
    print(record.write("Predicted and measured times", {"rows": rows}, body(rows)))


def body(rows: list[Result]) -> str:
    """The page below its headline."""
    done = [row for row in rows if "failure" not in row]
    cells = [_cells(row) for row in done]
    told = [f"- {row['model']}: {row['failure']}" for row in rows if "failure" in row]
    if done:
        near = sum(abs(row["predicted"] / row["seconds"] - 1) <= 0.2 for row in done)
        near += sum(abs(row["predicted_plain"] / row["plain"] - 1) <= 0.2 for row in done)
        ratios = sum(abs(_apart(row)) <= 0.05 for row in done)
        figures = "measured by seconds of the processor" if all(row["calibrated"] for row in done) else "built in"
        told.insert(
            0,
            f"The figures of the machine are {figures}. {near} of {2 * len(done)} predicted times are within 20 % of "
            f"what was measured, {ratios} of {len(done)} slow-downs within 5 points.",
        )
    return "\n\n".join([table.markdown(HEADS, cells), *told])


def _apart(row: Result) -> float:
    return row["predicted"] / row["predicted_plain"] - row["seconds"] / row["plain"]


def _cells(row: Result) -> tuple[str, ...]:
    plain, planned = row["predicted_plain"], row["predicted"]
    return (
        row["model"],
        f"{row['share']:.0%}",
        f"{1e3 * plain:.1f}",
        f"{1e3 * row['plain']:.1f}",
        f"{plain / row['plain']:.2f}",
        f"{1e3 * planned:.1f}",
        f"{1e3 * row['seconds']:.1f}",
        f"{planned / row['seconds']:.2f}",
        f"{planned / plain - 1:+.1%}",
        f"{row['seconds'] / row['plain'] - 1:+.1%}",
        f"{100 * _apart(row):+.1f}",
    )


def calibrated(task: Task) -> Iterator[Result]:
    """Within a process of its own: the figures of this machine, kept for the others."""
    import torch

    from memgraph.machine.calibration import calibrate_device
    from memgraph.machine.hardware import save

    torch.set_num_threads(1)
    hardware = calibrate_device("cpu", time.process_time)
    save(hardware)
    yield {"flops": dict(hardware.flops), "memory": hardware.memory_bandwidth, "exp": hardware.transcendental_rate}


def steps(task: Task) -> Iterator[Result]:
    """Within a process of its own: both steps of one model, compiled, then run in turn."""
    import torch

    import memgraph
    from memgraph.machine.hardware import load
    from tests.support.models.sized import Shape, make

    name, _, layers = task["model"].partition(":")
    torch.set_num_threads(1)
    shape = Shape(layers=int(layers), hidden=256, sequence=512, vocabulary=4096, dropout=task["dropout"])
    case = make(name, shape)
    loss = case.loss
    plain = torch.compile(lambda *inputs: loss(*inputs), fullgraph=True)
    for share in (task["budget"], *MORE):
        options = {"budget": share}
        planned = torch.compile(lambda *inputs: loss(*inputs), fullgraph=True, backend="memgraph", options=options)
        try:
            planned(*case.inputs)
            break
        except memgraph.BudgetError:  # the gradients alone may take more
            torch._dynamo.reset()
    arms: dict[str, Callable[..., Any]] = {"plain": plain, "seconds": planned}
    spent: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(task["rounds"] + 2):
        for arm, function in arms.items():
            start = time.process_time()
            function(*case.inputs).backward()
            if number >= 2:  # the first compiles, the second fills caches
                spent[arm].append(time.process_time() - start)
            case.clear()
    report = memgraph.report()
    yield {
        "calibrated": load("cpu").measured,
        "share": share,
        "predicted_plain": report.unplanned_time,
        "predicted": report.predicted_time,
        "peak_share": report.predicted_peak / report.unplanned_peak,
        "least": {arm: min(times) for arm, times in spent.items()},
        "threads": torch.get_num_threads(),
    } | {arm: statistics.median(times) for arm, times in spent.items()}


if __name__ == "__main__":
    typer.run(main)
