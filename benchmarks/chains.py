"""The smallest budget of chains of equal blocks and of unrolled recurrent networks, measured through Inductor.

    a chain of n blocks, one activation each, every value computed again at most once:  about sqrt(2 n) activations
    targets: Tanh x 64 at most 15, ReLU x 36 11, GELU x 36 15, residual GELU x 36 19; four times the length: at most 2.2
    times that; an LSTM of 200 steps under a quarter of what Inductor takes

Every case runs in a process of its own. The smallest budget is the one that the BudgetError of a budget of one byte
names; it is then given as the budget, and a step's peak is measured by the profiler's allocation events. Peaks are
above the parameters and the input; the gradients of the parameters are in them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

import machine
import typer

CASES = "tanh:64,relu:36,gelu:36,residual:36,tanh:256,residual:144,lstm:200"
ROWS, WIDTH, STATE = 4096, 64, 32
app = typer.Typer(add_completion=False)


@app.command()
def main(
    cases: Annotated[str, typer.Option(help="What and how long, by commas.")] = CASES,
    rounds: Annotated[int, typer.Option(help="Timed rounds of one step of each arm.")] = 5,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-chains",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    rows: list[dict[str, Any]] = []
    for case in cases.split(","):
        done = subprocess.run(
            [sys.executable, __file__, "case", case, str(rounds)], stdout=subprocess.PIPE, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(write(rows, name), flush=True)  # after each case: the long ones take minutes


def write(rows: list[dict[str, Any]], name: str) -> str:
    """Write what is measured so far; returns the table."""
    where = machine.describe()
    text = f"# Chains\n\n{machine.headline(where)}\n{table(rows)}\n"
    folder = machine.results_folder(name)
    (folder / "results.json").write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
    (folder / "table.md").write_text(text)
    return text


@app.command()
def case(spelled: str, rounds: int) -> None:
    """One case, as a line of JSON."""
    print(json.dumps(measure(spelled, rounds)))


def measure(spelled: str, rounds: int) -> dict[str, Any]:
    """Peaks in activations, and the median of a step's time by plain Inductor's, of one case."""
    import torch

    import memgraph

    what, length = spelled.split(":")
    model, x = build(what, int(length))
    baseline = sum(p.nbytes for p in model.parameters()) + x.nbytes

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).pow(2).mean()

    def step(compiled: Any) -> Any:
        def run() -> None:
            compiled(x).backward()
            model.zero_grad(set_to_none=True)

        run()
        return run

    plain = step(torch.compile(loss, backend="inductor"))
    start = time.process_time()
    try:
        memgraph.plan(loss, x, options={"budget": 1})
        raise AssertionError("a budget of one byte was kept")
    except memgraph.BudgetError:
        planning = time.process_time() - start
    torch._dynamo.reset()
    try:
        step(torch.compile(loss, backend="memgraph", options={"budget": 1}))
        raise AssertionError("a budget of one byte was kept")
    except memgraph.BudgetError as error:
        smallest = error.minimum
    torch._dynamo.reset()
    planned = step(torch.compile(loss, backend="memgraph", options={"budget": smallest}))
    predicted = memgraph.report().predicted_peak - memgraph.report().baseline
    ratios = []
    for _ in range(rounds):
        times = []
        for run in (plain, planned):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        ratios.append(times[1] / times[0])
    one = x.nbytes
    return {
        "case": spelled,
        "activation": one,
        "gradients": sum(p.nbytes for p in model.parameters()) / one,
        "inductor": (memgraph.measure_peak(plain) - baseline) / one,
        "smallest": (memgraph.measure_peak(planned) - baseline) / one,
        "predicted": predicted / one,
        "time": statistics.median(ratios),
        "plan_cpu_seconds": planning,
    }


def build(what: str, length: int) -> tuple[Any, Any]:
    """A model and its input."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(STATE, STATE), nn.Linear(STATE, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = torch.zeros_like(x), torch.zeros_like(x)
            for _ in range(length):
                state = self.cell(x, state)
            return self.head(state[0])

    torch.manual_seed(0)
    if what == "lstm":
        return Unrolled(), torch.randn(WIDTH, STATE)
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}.get(what)

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) if activation else Residual()

    return nn.Sequential(*[block() for _ in range(length)]), torch.randn(ROWS, WIDTH)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; peaks in activations."""
    head = ("case", "Inductor", "smallest", "predicted", "gradients in it", "share", "time", "planning, CPU s")
    lines = [head, ("---",) + ("---:",) * (len(head) - 1)]
    for row in rows:
        figures = [f"{row[key]:.2f}" for key in ("inductor", "smallest", "predicted", "gradients")]
        share = f"{row['smallest'] / row['inductor']:.1%}"
        name = row["case"].replace(":", " x ")
        lines.append((name, *figures, share, f"{row['time']:.2f}", f"{row['plan_cpu_seconds']:.1f}"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    app() if sys.argv[1:2] == ["case"] else typer.run(main)
