"""What does a resumed run pay for its first step, with the caches of the run before it?

    python -m benchmarks.resumed_run

The same script four times, a process each: with empty caches; again; from the checkpoint that the first one wrote, its
optimizer's state loaded before the first step; and that again. A Llama compiled whole, and one compiled layer by layer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from benchmarks import harness, table, training_loops
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import MIB

# What is compiled, and the budget in MiB.
RUNS = {"whole": 42, "layers": 60}
STARTS = ("cold", "warm", "resumed", "resumed, warm")
STEPS = 3
HEADS = ("compiled", "start", "first step, s", "to the warm one", "plans", "from the cache", "losses")


def main(name: str = "cpu-resumed-run") -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    for run, budget in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            caches = {"MEMGRAPH_CACHE": f"{folder}/memgraph", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            for start in STARTS:
                task = {"run": run, "budget": budget * MIB, "start": start, "checkpoint": f"{folder}/checkpoint.pt"}
                (row,) = Process("benchmarks.resumed_run:measure", task, None, caches).results()
                rows.append(task | row)
                if "failure" in row:
                    raise RuntimeError(f"{task}: {row['failure']}")
        print(record.write("Resumed run", {"rows": rows}, table.markdown(HEADS, list(_cells(rows)))), flush=True)


def _cells(rows: list[Result]) -> Iterator[list[str]]:
    warm = {row["run"]: row["seconds"][0] for row in rows if row["start"] == "warm"}
    for row in rows:
        first, losses = row["seconds"][0], " ".join(f"{loss:.6f}" for loss in row["losses"])
        counts = (str(row[name]) for name in ("plans", "cached"))
        yield [row["run"], row["start"], f"{first:.1f}", f"{first / warm[row['run']]:.2f}", *counts, losses]


# Within the process of one run


def measure(task: Task) -> Iterator[Result]:
    """Seconds and losses of the first steps, how many plans were made, and how many of them came from the cache."""
    import torch

    import memgraph

    torch.manual_seed(0)
    how = {"backend": "memgraph", "options": {"budget": task["budget"]}}
    model = training_loops.llama(4, 512, hidden=128)
    loss_of = lambda ids: model(input_ids=ids, labels=ids).loss  # noqa: E731
    if task["run"] == "whole":
        loss_of = torch.compile(loss_of, **how)
    else:
        for layer in model.model.layers:
            layer.compile(**how)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if "resumed" in task["start"]:
        kept = torch.load(task["checkpoint"])
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["random"])
        del kept
    seconds, losses = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = loss_of(torch.randint(0, 512, (4, 512)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss.item()))
    reports = memgraph.reports()
    cached = sum(report.cached for report in reports)
    yield {"seconds": seconds, "losses": losses, "plans": len(reports), "cached": cached}
    if not Path(task["checkpoint"]).exists():
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save(states, task["checkpoint"])


if __name__ == "__main__":
    typer.run(main)
