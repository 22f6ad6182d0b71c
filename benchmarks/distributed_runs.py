"""Is the budget kept in every step of a run of two processes? Peaks by a hook on the allocator of each.

    python -m benchmarks.distributed_runs --only ddp,fsdp2_layers

As `benchmarks.training_runs`, with one process a rank (gloo, on the CPU). A row has the higher peak of both ranks.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, training_loops, training_runs
from benchmarks.harness import Process, Result, Task

RANKS = 2
# What is done, under which budgets in MiB: those that were broken when users tried memgraph first.
RUNS = {
    "ddp": (60, 42),
    "ddp_around": (60, 42),
    "ddp_late": (42,),
    "fsdp2_layers": (40,),
    "fsdp2_layers_late": (40,),
    "fsdp2_whole": (42,),
}
SECONDS = 1200  # of one run
REFUSALS = 4  # the smallest budget that an error of the first step names is at least so much


def main(
    only: Annotated[str, typer.Option(help="Which runs, by commas.")] = ",".join(RUNS),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-distributed-runs",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with training_runs.allocator_hook() as environment:
        for run in only.split(","):
            plain = _run({"run": run, "budget": None}, environment)
            rows.append(plain)
            for budget in (given * training_runs.MIB for given in RUNS[run]):
                for _ in range(REFUSALS + 1):
                    row = training_runs.compared(_run({"run": run, "budget": budget}, environment), plain)
                    rows.append(row)
                    if "refused" not in row:
                        break
                    budget = row["refused"]
            print(record.write("Distributed runs", {"rows": rows}, training_runs.body(rows)), flush=True)


def _run(task: Task, environment: dict[str, str]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        tasks = [task | {"rank": rank, "meeting": str(Path(folder) / "store")} for rank in range(RANKS)]
        ranks = [Process("benchmarks.distributed_runs:measure", mine, None, environment) for mine in tasks]
        rows = [row for rank in ranks for row in rank.results(SECONDS)]
    if refused := [row["refused"] for row in rows if "refused" in row]:  # the other one may have waited in vain
        return task | {"refused": max(refused), "after": min(row["after"] for row in rows if "refused" in row)}
    for row in rows:
        if "failure" in row:
            raise RuntimeError(f"{task}: {row['failure']}")
    return task | {
        "peaks": [max(pair) for pair in zip(*(row["peaks"] for row in rows), strict=True)],
        "losses": [loss for row in rows for loss in row["losses"]],
        "seconds": [max(pair) for pair in zip(*(row["seconds"] for row in rows), strict=True)],
        "plans": max(row["plans"] for row in rows),
    }


# Within the process of one rank


def measure(task: Task) -> Iterator[Result]:
    """Losses and peaks of the steps of one rank, or the smallest budget of its error and the steps before it."""
    import datetime

    import torch
    import torch.distributed as dist

    store, limit = f"file://{task['meeting']}", datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=RANKS, timeout=limit)
    torch.manual_seed(0)
    with contextlib.closing(_steps(task["run"], task["rank"], training_runs.backend(task["budget"]))) as steps:
        yield training_runs.measured(steps)
    dist.destroy_process_group()


def _steps(run: str, rank: int, how: dict[str, Any]) -> Iterator[Callable[[], float]]:
    """The forwards and backwards of a run, one after another; between them its optimizer steps."""
    import torch

    model = (_ddp if run.startswith("ddp") else _fsdp2)(run, how)
    late = run.endswith("_late")
    optimizer = None if late else torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(rank)

    def step() -> float:
        ids = torch.randint(0, 512, (2, 512), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return float(loss.item())

    for _ in range(training_runs.FEW):
        yield step
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()


def _ddp(run: str, how: dict[str, Any]) -> Any:
    """Three buckets and more: a graph each."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = training_loops.llama(layers=2, vocabulary=512, hidden=256)
    if run == "ddp_around":
        return torch.compile(DistributedDataParallel(model, bucket_cap_mb=4), **how)
    model.compile(**how)
    return DistributedDataParallel(model, bucket_cap_mb=4)


def _fsdp2(run: str, how: dict[str, Any]) -> Any:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = training_loops.llama(layers=2, vocabulary=512, hidden=256)
    for layer in model.model.layers:
        if run != "fsdp2_whole":
            layer.compile(**how)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if run == "fsdp2_whole":
        model.compile(**how)
    return model


if __name__ == "__main__":
    typer.run(main)
