"""The longest sequence of an 8B Llama on one simulated card, with one lever more in each row. Planned, not trained.

    python -m benchmarks.simulated_longest --only "save and recompute,+ tiles"

Run it with a Python that has torch's CUDA build (`make test-simulated` makes one, .venv-cuda). 32 layers, weights,
gradients and AdamW's state in bfloat16, from transformers' own code (examples/llama_8b.py). The card is there for the
kernels that torch chooses on it, and for their scratch; peaks are the graph sweep's. Every row is a process of its own.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from memgraph import simulator

OPTIMIZER = "adamw(fused=True)"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One row."""

    options: dict[str, Any]
    """Beside the budget. A folder that planning does not look at stands for the disk."""
    start: int
    """Tokens that the search begins with."""
    step: int
    """Sequences are multiples of it."""


HOST = {"host": "1TB"}
DISK = {"nvme": {"path": "/scratch", "limit": "4TB"}}
ARMS = {
    "save and recompute": Arm({}, 49152, 1024),
    "+ tiles": Arm({"tile": True}, 81920, 8192),
    "+ host (1 TB)": Arm({"tile": True, "offload": HOST}, 163840, 8192),
    "+ NVMe (4 TB)": Arm({"tile": True, "offload": HOST | DISK}, 163840, 8192),
}
PEAK = 989e12  # FLOP/s of an H100 (SXM) in bfloat16, as the maker says, without sparsity
HEADS = (
    "levers", "longest", "step", "tokens/s", "predicted, s", "floor, s", "times the floor", "peak, GiB",
    "Inductor's, GiB", "to host, GiB", "to disk, GiB", "waits, s", "next passes by, MiB", "plans", "CPU s", "clock s",
)  # fmt: skip
NOTE = (
    "Predicted, for a simulated H100: nothing was trained. *longest*: tokens of one text, a multiple of *step*; the "
    "next multiple passes the budget of {budget:.1f} GiB (the card's memory less 5 %), in which are weights, gradients "
    "and the optimizer's state. *predicted*: the planner's time of forward and backward, by built-in figures (products "
    "at 60 % of the card's peak, 2.7 TB/s of memory, 50 GB/s of link, and waits for copies). *floor*: the products "
    "of the model and of causal attention alone, forward and backward, at the card's whole peak of 989 TFLOP/s. "
    "*Inductor's*: what plain Inductor would reach at that length, by the sweep."
)
GIB = 2**30


def main(
    only: Annotated[str, typer.Option(help="Rows, by commas; all of them without.")] = "",
    card: Annotated[str, typer.Option(help="Words of a card's name.")] = "H100 80GB",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "simulated-longest",
    limit: Annotated[int, typer.Option(help="Seconds that one row may take.")] = 3600,
) -> None:
    """Plan, print, and write to benchmarks/results after every row."""
    record, rows, text = harness.Record(name), [], ""
    environment = simulator.environment(card)
    for arm in only.split(",") if only else ARMS:
        task = {"arm": arm, "card": card}
        process = Process("benchmarks.simulated_longest:measure", task, environment=environment)
        for row in process.results(limit):
            harness.say(str(row))
            rows.append({"arm": arm} | row)
            budget = next((row["budget"] / GIB for row in rows if "budget" in row), 0.0)
            body = f"{NOTE.format(budget=budget)}\n\n" + table.markdown(HEADS, map(cells, rows))
            text = record.write("The longest sequence of an 8B Llama", {"card": card, "rows": rows}, body)
    print(text)


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    if "longest" not in row:
        return [row["arm"], row["failure"], *[""] * (len(HEADS) - 2)]
    return [
        row["arm"],
        f"{row['longest']:,}",
        f"{row['step']:,}",
        f"{row['longest'] / row['predicted_seconds']:,.0f}",
        f"{row['predicted_seconds']:.2f}",
        f"{row['floor_seconds']:.2f}",
        f"{row['predicted_seconds'] / row['floor_seconds']:.2f}",
        *(f"{row[key] / GIB:.1f}" for key in ("peak", "unplanned_peak", "to_host", "to_disk")),
        f"{row['waits']:.2f}",
        table.mib(row["excess"]),
        str(len(row["asked"])),
        *(f"{row[key]:.0f}" for key in ("cpu_seconds", "clock_seconds")),
    ]


def measure(task: Task) -> Iterator[Result]:
    """The longest sequence of a row, in a process on the simulated card."""
    import memgraph
    from examples.llama_8b import step

    arm = ARMS[task["arm"]]
    fn, args = step(arm.start)
    told = {"budget": "auto", "cache": False, "progress": False} | arm.options
    clock = time.perf_counter()
    found = memgraph.longest(fn, *args, step=arm.step, options=told, hardware=task["card"], optimizer=OPTIMIZER)
    report = found.report
    yield {
        "longest": found.size,
        "step": found.step,
        "excess": found.excess,
        "asked": [dataclasses.asdict(answer) for answer in found.asked],
        "budget": report.budget,
        "peak": report.predicted_peak,
        "unplanned_peak": report.unplanned_peak,
        "predicted_seconds": report.predicted_time,
        "unplanned_seconds": report.unplanned_time,
        "floor_seconds": floor(fn.__closure__[0].cell_contents, found.size),
        "to_host": report.bytes_on("host"),
        "to_disk": report.bytes_on("nvme"),
        "waits": report.stall_time,
        "clock_seconds": time.perf_counter() - clock,
        "cpu_seconds": _cpu_seconds(),
        "resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "notes": report.notes,
    }


def floor(model: Any, tokens: int) -> float:
    """Seconds of a forward and its backward that products take at the card's peak: weights', and attention's."""
    config = model.config
    weights = sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()
    # Scores and values, 2 FLOPs a pair of tokens and feature each, half of the pairs; the backward has twice as many.
    attention = 2 * 2 * config.num_hidden_layers * config.hidden_size * tokens**2 / 2
    return 3 * (2 * weights * tokens + attention) / PEAK


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
