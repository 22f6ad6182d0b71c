"""The longest sequence of an 8B Llama on one simulated card, with one lever more in each row. Planned, not trained.

    python -m benchmarks.simulated_longest --only "save and recompute,+ tiles"

Run it with a Python that has torch's CUDA build (`make test-simulated` makes one, .venv-cuda). 32 layers, weights,
gradients and AdamW's state in bfloat16, from transformers' own code (examples/llama_8b.py). The card is there for the
kernels that torch chooses on it, and for their scratch; peaks are the graph sweep's. Rows with the same tiles are asked
about one capture, in a process of its own.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task
from memgraph import simulator

# By row, the options beside the budget. A folder that planning does not look at stands for the disk.
HOST = {"host": "1TB"}
ARMS: dict[str, dict[str, Any]] = {
    "save and recompute": {},
    "+ tiles": {"tile": True},
    "+ host, 1 TB": {"tile": True, "offload": HOST},
    "+ NVMe, 4 TB": {"tile": True, "offload": HOST | {"nvme": {"path": "/scratch", "limit": "4TB"}}},
}
OPTIMIZER = "adamw(fused=True)"
START = 16384  # tokens that the search begins with
STEP = 1024  # sequences are multiples
PEAK = 989e12  # FLOP/s of an H100 (SXM) in bfloat16, as the maker says, without sparsity
HEADS = (
    "levers", "longest", "tokens/s", "predicted, s", "floor, s", "times the floor", "peak, GiB", "Inductor's, GiB",
    "to host, GiB", "to disk, GiB", "waits, s", "next passes by, MiB", "plans", "CPU s", "clock s",
)  # fmt: skip
NOTE = (
    "Predicted, for a simulated H100: nothing was trained. *longest*: tokens of one text, a multiple of {step:,}; the "
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
    limit: Annotated[int, typer.Option(help="Seconds that the rows of one capture may take.")] = 3600,
) -> None:
    """Plan, print, and write to benchmarks/results after every row."""
    record, rows, text = harness.Record(name), [], ""
    environment = simulator.environment(card)
    chosen = only.split(",") if only else list(ARMS)
    groups = ([arm for arm in chosen if ("tile" in ARMS[arm]) is tiled] for tiled in (False, True))
    for group in filter(None, groups):
        task = {"arms": group, "card": card}
        process = Process("benchmarks.simulated_longest:measure", task, environment=environment)
        for row in process.results(limit):
            harness.say(str(row))
            rows.append({"arm": ", ".join(group)} | row)
            budget = next((row["budget"] / GIB for row in rows if "budget" in row), 0.0)
            body = f"{NOTE.format(step=STEP, budget=budget)}\n\n" + table.markdown(HEADS, map(cells, rows))
            text = record.write("The longest sequence of an 8B Llama", {"card": card, "rows": rows}, body)
    print(text)


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    if "longest" not in row:
        return [row["arm"], row["failure"], *[""] * (len(HEADS) - 2)]
    return [
        row["arm"],
        f"{row['longest']:,}",
        f"{row['longest'] / row['predicted_seconds']:,.0f}",
        f"{row['predicted_seconds']:.2f}",
        f"{row['floor_seconds']:.2f}",
        f"{row['predicted_seconds'] / row['floor_seconds']:.2f}",
        *(f"{row[key] / GIB:.1f}" for key in ("peak", "unplanned_peak", "to_host", "to_disk")),
        f"{row['waits']:.2f}",
        table.mib(row["excess"]),
        str(row["asked"]),
        *(f"{row[key]:.0f}" for key in ("cpu_seconds", "clock_seconds")),
    ]


def measure(task: Task) -> Iterator[Result]:
    """The longest sequence of each row, in a process on the simulated card. Its options may not differ in tiles."""
    from examples.llama_8b import step
    from memgraph.backend.capture import Target
    from memgraph.backend.explore import Explorer, explored
    from memgraph.backend.options import parse_options

    fn, args = step(START)
    model = fn.__closure__[0].cell_contents
    told = {arm: parse_options({"budget": "auto", "progress": False} | ARMS[arm]) for arm in task["arms"]}
    target = Target.of(told[task["arms"][0]], task["card"], None, OPTIMIZER)
    captured = _cpu_seconds()

    def ask(explorer: Explorer) -> list[Result]:
        harness.say(f"captured: {_cpu_seconds() - captured:.0f} s of CPU")
        return [_row(arm, explorer, options, model) for arm, options in told.items()]

    yield from explored(fn, args, {}, target, ask, 1)


def _row(arm: str, explorer: Any, options: Any, model: Any) -> Result:
    from memgraph.backend.longest import longest_of

    clock, cpu = time.perf_counter(), _cpu_seconds()
    found = longest_of(explorer, START, STEP, options=options)
    report = found.report
    row = {
        "arm": arm,
        "longest": found.size,
        "excess": found.excess,
        "asked": len(found.asked),
        "budget": report.budget,
        "peak": report.predicted_peak,
        "unplanned_peak": report.unplanned_peak,
        "predicted_seconds": report.predicted_time,
        "unplanned_seconds": report.unplanned_time,
        "floor_seconds": floor(model, found.size),
        "to_host": report.bytes_on("host"),
        "to_disk": report.bytes_on("nvme"),
        "waits": report.stall_time,
        "clock_seconds": time.perf_counter() - clock,
        "cpu_seconds": _cpu_seconds() - cpu,
        "resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "notes": report.notes,
    }
    harness.say(f"{arm}: {found}; {row['cpu_seconds']:.0f} s of CPU")
    return row


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
