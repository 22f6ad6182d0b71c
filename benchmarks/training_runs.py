"""Is the budget kept in every step of a run? Peaks by a hook on the allocator, which memgraph does not know.

    python -m benchmarks.training_runs --only adamw,lengths

Each run is a process of its own with `benchmarks/allocations.c` preloaded. A Llama (or a chain of blocks) is trained by
plain Inductor and under each budget; the table has the peaks of forward and backward in some steps, the largest of all,
the plans that were made (how many late, and how often graphs were lowered for all of them), and the largest difference
of a loss from plain Inductor's. Where a budget is refused, the smallest one that the error names is run as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task

MIB = 1 << 20
LONGEST = 512
# What is done, the budgets (in MiB, or as a share of what plain Inductor's largest step reaches), and other options.
RUNS: dict[str, list[tuple[int | float, dict[str, Any]]]] = {
    "adamw": [(36, {}), (24, {})],
    "adamw_late": [(36, {})],
    "accumulation": [(40, {})],
    "gradients_kept": [(40, {})],
    "lengths": [
        (0.6, {}),
        (0.6, {"largest_size": LONGEST}),
        (0.55, {"tile": True}),
        (0.55, {"tile": True, "largest_size": LONGEST}),
    ],
    "graph_break": [(100, {}), (75, {})],
    "layers_one_by_one": [(60, {}), (40, {})],
}
SHOWN = (0, 1, 2, 4)  # steps
STEPS = {"lengths": 200}
LATE = 20  # steps, after which few plans should be made
HEADS = ("run", "budget", *(f"step {n + 1}" for n in SHOWN), "largest", "plans", "late", "lowered", "losses")


def main(
    only: Annotated[str, typer.Option(help="Which runs, by commas.")] = ",".join(RUNS),
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-training-runs",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(name), []
    with allocator_hook() as environment:
        for run in only.split(","):
            plain = _run({"run": run, "budget": None, "options": {}}, environment)
            rows.append(plain)
            for budget, options in RUNS[run]:
                size = budget * MIB if isinstance(budget, int) else int(budget * max(plain["peaks"]))
                task = {"run": run, "budget": size, "options": options}
                row = _run(task, environment)
                rows.append(compared(row, plain))
                if "refused" in row:
                    rows.append(compared(_run(task | {"budget": row["refused"]}, environment), plain))
                print(record.write("Training runs", {"rows": rows}, body(rows)), flush=True)


@contextlib.contextmanager
def allocator_hook() -> Iterator[dict[str, str]]:
    """The environment of a process whose allocator is counted."""
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "allocations.so"
        source = Path(__file__).with_name("allocations.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(hook), "-ldl", "-lpthread"], check=True)
        yield {"LD_PRELOAD": str(hook)}


def _run(task: Task, environment: dict[str, str]) -> Result:
    (row,) = Process("benchmarks.training_runs:measure", task, None, environment).results()
    if "failure" in row:
        raise RuntimeError(f"{task}: {row['failure']}")
    return task | row


def compared(row: Result, plain: Result) -> Result:
    """The row of a run, with the largest difference of a loss from plain Inductor's, relative to it."""
    if "losses" in row:
        pairs = zip(row["losses"], plain["losses"], strict=True)
        row["difference"] = max(abs(mine - theirs) / abs(theirs) for mine, theirs in pairs)
    return row


def body(rows: list[Result]) -> str:
    """The table; peaks in MiB."""
    return table.markdown(HEADS, [cells(row) for row in rows])


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS."""
    budget = "plain Inductor" if row["budget"] is None else f"{row['budget'] / MIB:.1f}"
    name = ", ".join([row["run"], *(f"{key}={value}" for key, value in row.get("options", {}).items())])
    if "refused" in row:
        return [name, budget, f"refused: {row['refused'] / MIB:.1f}", *[""] * (len(HEADS) - 3)]
    peaks = [peak / MIB for peak in row["peaks"]]
    shown = [f"{peaks[step]:.1f}" for step in SHOWN]
    difference = f"{row['difference']:.0e}" if "difference" in row else ""
    made = row.get("made", ())
    counts = [row["plans"], sum(step > LATE for step, _ in made), sum(lowered for _, lowered in made)]
    return [name, budget, *shown, f"{max(peaks):.1f}", *map(str, counts), difference]


# Within the process of one run


def measure(task: Task) -> Iterator[Result]:
    """Losses and peaks of the steps of one run, or the smallest budget of its error."""
    import torch

    torch.manual_seed(0)
    yield measured(_steps(task["run"], backend(task["budget"], **task["options"])))


def backend(budget: int | None, **options: Any) -> dict[str, Any]:
    """The arguments of `compile`: plain Inductor without a budget."""
    if budget is None:
        return {"backend": "inductor"}
    return {"backend": "memgraph", "options": {"budget": budget} | options}


def measured(steps: Iterable[Callable[[], float]]) -> Result:
    """Losses and peaks of steps, or the smallest budget of an error, and how many steps came before it."""
    import memgraph

    hook = ctypes.CDLL(None)
    hook.mh_peak.restype = ctypes.c_long
    losses: list[float] = []
    peaks: list[int] = []
    made: list[tuple[int, int]] = []  # for each plan the step, and how often the graph was lowered for it
    try:
        for step in steps:
            hook.mh_reset()
            losses.append(step())
            peaks.append(hook.mh_peak())
            made += [(len(losses), report.attempts) for report in memgraph.reports()[len(made) :]]
    except memgraph.BudgetError as error:
        harness.say(str(error))
        return {"refused": error.minimum, "after": len(peaks), "peaks": peaks}
    return {"losses": losses, "peaks": peaks, "made": made, "plans": len(made)}


def _steps(run: str, how: dict[str, Any]) -> Iterator[Callable[[], float]]:
    """The forwards and backwards of a run, one after another; between them its optimizer steps."""
    import torch

    chain = run == "graph_break"
    model, batch = _chain() if chain else _llama(run, how)
    optimizer = None if run == "adamw_late" else torch.optim.AdamW(model.parameters(), 1e-3)
    whole = model if chain else (lambda ids: model(input_ids=ids, labels=ids).loss)
    loss_of = whole if run == "layers_one_by_one" else torch.compile(whole, **how)
    lengths = random.Random(1)

    def step() -> float:
        loss = loss_of(batch(lengths.randint(64, LONGEST)))
        loss.backward()
        return float(loss.item())

    for number in range(STEPS.get(run, 10)):
        yield step
        if run == "accumulation" and number % 3 < 2:
            continue
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad(set_to_none=run != "gradients_kept")


def _llama(run: str, how: dict[str, Any]) -> tuple[Any, Callable[[int], Any]]:
    import torch

    vocabulary = 128 if run == "layers_one_by_one" else 2048
    model = llama(4 if run == "layers_one_by_one" else 2, vocabulary)
    if run == "layers_one_by_one":
        for layer in model.model.layers:
            layer.compile(**how)
    tokens = 512 if run == "layers_one_by_one" else 256
    return model, lambda length: torch.randint(0, vocabulary, (4, length if run == "lengths" else tokens))


def llama(layers: int, vocabulary: int) -> Any:
    """A small one, to be trained."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=352, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=vocabulary, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def _chain() -> tuple[Any, Callable[[int], Any]]:
    """Six blocks with a graph break in the middle."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = block(x)
                if number == 2:
                    torch._dynamo.graph_break()
            return x.square().mean()

    x = torch.randn(2048, 256)
    return Broken(), lambda _: x


if __name__ == "__main__":
    typer.run(main)
