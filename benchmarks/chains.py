"""The smallest budget of chains of equal blocks and of unrolled recurrent networks, measured through Inductor.

    python -m benchmarks.chains --cases tanh:64,lstm:200

    a chain of n blocks, one activation each, every value computed again at most once:  about sqrt(2 n) activations
    targets: Tanh x 64 at most 15, ReLU x 36 11, GELU x 36 15, residual GELU x 36 19; four times the length: at most 2.2
    times that; an LSTM of 200 steps under a quarter of what Inductor takes

Every case runs in a process of its own. The smallest budget is the one that the BudgetError of a budget of one byte
names; it is then given as the budget, and a step's peak is measured by the profiler's allocation events. Peaks are
above the parameters and the input; the gradients of the parameters are in them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task

CASES = "tanh:64,relu:36,gelu:36,residual:36,tanh:256,residual:144,lstm:200"
HEADS = ("case", "Inductor", "smallest", "predicted", "gradients in it", "share", "time", "planning, CPU s")
ROWS, WIDTH, STATE = 4096, 64, 32


def main(
    cases: Annotated[str, typer.Option(help="What and how long, by commas.")] = CASES,
    rounds: Annotated[int, typer.Option(help="Timed rounds of one step of each arm.")] = 5,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-chains",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    for case in cases.split(","):
        (row,) = Process("benchmarks.chains:measure", {"case": case, "rounds": rounds}).results()
        if "failure" in row:
            raise RuntimeError(f"{case}: {row['failure']}")
        rows.append(row)
        print(record.write("Chains", {"rows": rows}, body(rows)), flush=True)  # after each case: some take minutes


def body(rows: list[Result]) -> str:
    """The table; peaks in activations."""
    return table.markdown(HEADS, [cells(row) for row in rows])


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    name = row["case"].replace(":", " x ")
    peaks = [f"{row[key]:.2f}" for key in ("inductor", "smallest", "predicted", "gradients")]
    share = f"{row['smallest'] / row['inductor']:.1%}"
    return [name, *peaks, share, f"{row['time']:.2f}", f"{row['plan_cpu_seconds']:.1f}"]


# Within the process of one case


def measure(task: Task) -> Iterator[Result]:
    """Peaks in activations, and the median of a step's time by plain Inductor's, of one case."""
    import torch

    import memgraph

    model, x = build(*task["case"].split(":"))
    baseline = sum(p.nbytes for p in model.parameters()) + x.nbytes

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).pow(2).mean()

    def step(compiled: Any) -> Callable[[], None]:
        def run() -> None:
            compiled(x).backward()
            model.zero_grad(set_to_none=True)

        run()
        return run

    def compiled(budget: int) -> Callable[[], None]:
        torch._dynamo.reset()
        return step(torch.compile(loss, backend="memgraph", options={"budget": budget}))

    plain = step(torch.compile(loss, backend="inductor"))
    start = time.process_time()
    minimum(lambda: memgraph.plan(loss, x, options={"budget": 1}))
    planning = time.process_time() - start
    smallest = compiled(minimum(lambda: compiled(1)))
    predicted = memgraph.report().predicted_peak - memgraph.report().baseline
    one = x.nbytes
    yield {
        "case": task["case"],
        "activation": one,
        "gradients": sum(p.nbytes for p in model.parameters()) / one,
        "inductor": (memgraph.measure_peak(plain) - baseline) / one,
        "smallest": (memgraph.measure_peak(smallest) - baseline) / one,
        "predicted": predicted / one,
        "time": statistics.median(seconds(smallest) / seconds(plain) for _ in range(task["rounds"])),
        "plan_cpu_seconds": planning,
    }


def minimum(refused: Callable[[], Any]) -> int:
    """The smallest budget, as the error of a budget of one byte names it."""
    import memgraph

    try:
        refused()
    except memgraph.BudgetError as error:
        return error.minimum
    raise AssertionError("a budget of one byte was kept")


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def build(kind: str, length: str) -> tuple[Any, Any]:
    """A model and its input."""
    import torch

    from tests.support.models.blocks import UnrolledLstm, chain

    torch.manual_seed(0)
    if kind == "lstm":
        return UnrolledLstm(STATE, int(length)), torch.randn(WIDTH, STATE)
    return chain(kind, int(length), WIDTH), torch.randn(ROWS, WIDTH)


if __name__ == "__main__":
    typer.run(main)
