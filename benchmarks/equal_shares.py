"""Graphs of one step planned together against an equal share for each: predicted seconds under the same budget.

    python -m benchmarks.equal_shares

Chains of blocks cut by one and by two graph breaks, and a Llama in the buckets of DDP, are trained until memgraph has
planned the round. The menus it chose from are read then. Under equal shares each graph takes its fastest plan that
holds no more than a share until its backward; the share is the one of all that is fastest within the same room.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from benchmarks import harness, table, training_loops, training_runs
from benchmarks.harness import Process, Result, Task
from benchmarks.training_runs import MIB

RUNS = {"one_break": (120, 100, 92), "two_breaks": (120, 110, 102), "ddp": (62, 58, 54)}
STEPS = 4
HEADS = ("run", "budget", "graphs", "plans", "together, ms", "equal shares, ms", "together to equal")


def main(name: str = "cpu-equal-shares") -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with training_runs.allocator_hook() as environment:
        for run, budgets in RUNS.items():
            for budget in budgets:
                task = {"run": run, "budget": budget * MIB}
                (row,) = Process("benchmarks.equal_shares:measure", task, None, environment).results()
                rows.append(task | row)
                print(
                    record.write("Equal shares", {"rows": rows}, table.markdown(HEADS, map(_cells, rows))), flush=True
                )


def _cells(row: Result) -> list[str]:
    head = [row["run"], f"{row['budget'] / MIB:.1f}"]
    if "together" not in row:
        return [*head, row.get("refused") or row["failure"], *[""] * (len(HEADS) - 3)]
    together, equal = row["together"], row["equal"]
    ratio = "none fits" if equal is None else f"{together / equal:.3f}"
    shown = "" if equal is None else f"{1e3 * equal:.1f}"
    return [*head, str(row["graphs"]), str(row["plans"]), f"{1e3 * together:.1f}", shown, ratio]


# Within the process of one run


def measure(task: Task) -> Iterator[Result]:
    """Seconds of the plans that were chosen together, and of the best equal share; or the smallest budget."""
    import torch

    import memgraph
    from memgraph.step import problem

    asked: list[tuple[Sequence[Any], int, tuple[int, ...] | None]] = []
    picked = problem.picked

    def seen(launches: Sequence[Any], graphs: Sequence[Any], room: int) -> tuple[int, ...] | None:
        places = picked(launches, graphs, room)
        asked.append((launches, room, places))
        return places

    problem.picked = seen  # only this benchmark's process: the menus are nowhere else
    torch.manual_seed(0)
    how = training_runs.backend(task["budget"])
    steps = _ddp(how) if task["run"] == "ddp" else training_loops.steps(task["run"], STEPS, how)
    try:
        for step in steps:
            step()
    except memgraph.BudgetError as error:
        yield {"refused": f"refused: {error.minimum / MIB:.1f}"}
        return
    launches, room, places = next(one for one in reversed(asked) if one[2] is not None)
    together = sum(launch.menu[place].seconds for launch, place in zip(launches, places, strict=True))
    plans = sum(len(launch.menu) for launch in launches)
    yield {"together": together, "equal": _equal(launches, room), "graphs": len(launches), "plans": plans}


def _equal(launches: Sequence[Any], room: int) -> float | None:
    """Seconds of the fastest equal share within a room; None where none fits."""
    best = None
    for share in sorted({option.envelope.held for launch in launches for option in launch.menu}):
        mine = [[option for option in launch.menu if option.envelope.held <= share] for launch in launches]
        if not all(mine):
            continue
        taken = [min(menu, key=lambda option: option.seconds) for menu in mine]
        seconds = sum(option.seconds for option in taken)
        if _peak(launches, taken) <= room and (best is None or seconds < best):
            best = seconds
    return best


def _peak(launches: Sequence[Any], taken: Sequence[Any]) -> int:
    reached = []
    for launch, option in zip(launches, taken, strict=True):
        forward = launch.before_forward + sum(taken[other].envelope.held for other in launch.open_in_forward)
        backward = launch.before_backward + sum(taken[other].envelope.held for other in launch.open_in_backward)
        reached += [forward + option.envelope.forward, backward + option.envelope.backward]
        reached += [forward + launch.outside_forward, backward + launch.outside_backward]
    return max(reached)


def _ddp(how: dict[str, Any]) -> Iterator[training_loops.Step]:
    """DDP of one process: its buckets cut the graph as those of many do."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        model = training_loops.llama(layers=2, vocabulary=512, hidden=256)
        model.compile(**how)
        model = DistributedDataParallel(model, bucket_cap_mb=4)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def step() -> float:
            ids = torch.randint(0, 512, (2, 512))
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            return float(loss.item())

        for _ in range(STEPS):
            yield step
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
