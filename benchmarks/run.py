"""memgraph beside its peers: step time against measured peak, one table and one picture (`make bench`).

Every arm is a fresh process that compiles, measures the peak of one step, and then waits. Steps are timed
in turn, one of each arm a round and only one at a time, because a machine that others use drifts by more
than the arms differ: the figure to trust is the median over the rounds of an arm's time relative to
Inductor's in the same round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import machine
import table
import typer
from models import FACTORIES, Shape
from rich.console import Console

ACTIVATION_BUDGETS = (0.75, 0.5, 0.25, 0.1, 0.05)
MEMGRAPH_BUDGETS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.31)
REFERENCE = "inductor"
WORKER = Path(__file__).with_name("worker.py")
console = Console(stderr=True, highlight=False)


def arm(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind} | {
        "checkpointing": False, "activation_memory_budget": None, "budget": None
    } | settings  # fmt: skip


def all_arms(budgets: list[float], activation_budgets: list[float]) -> list[dict[str, Any]]:
    """Every arm, in the order of the table."""
    return [
        arm("eager", "eager"),
        arm("eager+checkpointing", "eager", checkpointing=True),
        arm(REFERENCE, "inductor"),
        arm("inductor+checkpointing", "inductor", checkpointing=True),
        *(
            arm(f"activation_memory_budget {budget:g}", "inductor", activation_memory_budget=budget)
            for budget in activation_budgets
        ),
        *(arm(f"memgraph {budget:g}", "memgraph", budget=budget) for budget in budgets),
        arm("memgraph smallest", "memgraph"),
    ]


class Process:
    """The worker of one arm."""

    def __init__(self, given: dict[str, Any], log: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; a process that died answers with a failure."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        return {"failure": f"the process ended with {self.process.wait()}"}

    def step(self) -> dict[str, Any]:
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: the answer says so
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure_group(
    arms: list[dict[str, Any]], given: dict[str, Any], rounds: int, log: Any
) -> dict[str, dict[str, Any]]:
    """Compile the arms one after another, then time them in turn."""
    found: dict[str, dict[str, Any]] = {}
    processes: dict[str, Process] = {}
    try:
        for one in arms:
            name = one["name"]
            console.print(f"{name}: compiling ... ", end="")
            process = processes[name] = Process(given | {"arm": one}, log)
            found[name] = process.answer() | {"arm": one, "seconds": []}
            console.print(_progress(found[name]))
            if "peak" not in found[name]:
                processes.pop(name).close()
        for number in range(rounds):
            for name in list(processes):
                answer = processes[name].step()
                if "seconds" in answer:
                    found[name]["seconds"].append(answer["seconds"])
                else:
                    found[name] |= answer
                    processes.pop(name).close()
            took = ", ".join(f"{name} {found[name]['seconds'][-1]:.3g}" for name in processes)
            console.print(f"round {number + 1} of {rounds}: {took}")
    finally:
        for process in processes.values():
            process.close()
    return found


def _progress(result: dict[str, Any]) -> str:
    if "refused" in result:
        return f"refused, the smallest budget is {result['refused'] / machine.MIB:.1f} MiB with the baseline"
    if "failure" in result:
        return f"[red]failed[/red]: {result['failure']}"
    return f"{result['compile_seconds']:.0f} s, peak {result['peak'] / machine.MIB:.1f} MiB above the start"


def measure(
    arms: list[dict[str, Any]], given: dict[str, Any], rounds: int, group: int, log: Any
) -> list[dict[str, Any]]:
    """All arms, in groups that fit into memory; each group has an Inductor of its own to be compared with."""
    reference = next(one for one in all_arms([], []) if one["name"] == REFERENCE)
    others = [one for one in arms if one["name"] != REFERENCE]
    groups = [others[i : i + group] for i in range(0, len(others), group)] or [[]]
    found: dict[str, dict[str, Any]] = {}
    for members in groups:
        results = measure_group([reference, *members], given, rounds, log)
        base = results[REFERENCE]
        if not base["seconds"]:
            raise RuntimeError(f"{REFERENCE} did not run: {base.get('failure')}; the workers' log says more")
        for result in results.values():
            result["ratios"] = [a / b for a, b in zip(result["seconds"], base["seconds"], strict=False)]
            if "loss" in result:
                for key in ("loss", "gradient_norm"):
                    result[f"{key}_error"] = abs(result[key] - base[key]) / abs(base[key])
        found = results | found  # the first group's Inductor is the one that is shown
    return [found[one["name"]] for one in arms]


def main(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(FACTORIES)}.")] = "llama",
    layers: int = 8,
    hidden: int = 512,
    sequence: int = 2048,
    vocabulary: int = 8192,
    batch: int = 1,
    dtype: str = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm.")] = 5,
    group: Annotated[int, typer.Option(help="Arms that are in memory at a time, Inductor apart.")] = 9,
    arms: Annotated[str, typer.Option(help="Only arms that start with one of these, by commas.")] = "",
    budgets: Annotated[str, typer.Option(help="memgraph's budgets.")] = ",".join(map(str, MEMGRAPH_BUDGETS)),
    activation_budgets: Annotated[str, typer.Option(help="activation_memory_budget.")] = ",".join(
        map(str, ACTIVATION_BUDGETS)
    ),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "",
) -> None:
    """Measure, print the table, and write it with a picture to benchmarks/results."""
    chosen = all_arms(_floats(budgets), _floats(activation_budgets))
    if arms:
        wanted = tuple(part.strip() for part in arms.split(","))
        chosen = [one for one in chosen if one["name"] == REFERENCE or one["name"].startswith(wanted)]
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
    shape = Shape(layers, hidden, sequence, vocabulary, batch)
    given = {"model": model, "shape": vars(shape), "device": device, "dtype": dtype}
    folder = machine.results_folder(name or f"{device}-{model}")
    with open(folder / "workers.log", "w") as log:
        results = measure(chosen, given, rounds, group, log)
    data = {"machine": machine.describe(device), **given, "rounds": rounds, "results": results}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    text = table.markdown(data)
    (folder / "table.md").write_text(text)
    print(text)
    try:
        table.picture(data, folder / "time-and-peak.png")
    except ImportError as missing:  # a GPU machine without a network has what it has
        print(f"no picture: {missing}")
    print(folder)
    if any("failure" in result for result in results):
        raise typer.Exit(1)


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    typer.run(main)
