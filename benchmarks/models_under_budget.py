"""Is a budget kept, by every family of models, with the same gradients?

    python -m benchmarks.models_under_budget --models llama,bert

Writes a table and JSON to benchmarks/results. Each model runs in a fresh process. The yardstick is Inductor without
memgraph, measured. Budgets are fractions of what it allocates above the start of a step, given as bytes. Where a budget
is refused, the minimum that the refusal names is the next budget, and that must be kept. Dropout is on where the model
has it: every step starts from one seed.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import LONGEST_MESSAGE, Process, Result, Task
from tests.support.models.sized import FAMILIES, Case, Shape, make

FRACTIONS = (1.0, 0.6, 0.4, 0.25)
# Relative to the largest entry of each gradient; the reductions of two schedules differ in their order.
TOLERANCE = 1e-4
SEED = 1234
NOTE = (
    "MiB above the baseline; error is |predicted - measured| / measured; gradients against Inductor without memgraph, "
    "relative."
)
HEADS = ("model", "budget", "bytes", "predicted", "measured", "of unplanned", "kept", "error") + (
    "gradients",
    "attempts",
    "compile",
)


def main(
    models: Annotated[str, typer.Option(help="Which models, separated by commas.")] = ",".join(FAMILIES),
    fractions: Annotated[str, typer.Option(help="Budgets, of the measured unplanned peak.")] = ",".join(
        map(str, FRACTIONS)
    ),
    layers: int = 2,
    hidden: int = 128,
    sequence: int = 256,
    vocabulary: int = 512,
    batch: int = 4,
    dropout: float = 0.1,
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "models-under-budget",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    shape = Shape(layers, hidden, sequence, vocabulary, batch, dropout)
    rows: list[Result] = []
    record = harness.Record(name)
    for model in models.split(","):
        task = {"model": model, "shape": vars(shape), "fractions": [float(part) for part in fractions.split(",")]}
        for answer in Process("benchmarks.models_under_budget:measure", task).results():
            rows.append(empty_row(model, None) | answer)
            harness.say(line(rows[-1]))
        record.write(
            "Models under a budget",
            {"shape": vars(shape), "rows": rows},
            f"{shape}\n\n{NOTE}\n\n{table.markdown(HEADS, map(cells, rows))}",
        )
    print(table.markdown(HEADS, map(cells, rows)))
    print(f"\n{record.folder}")
    if any(row["failure"] for row in rows):
        raise typer.Exit(1)


def cells(row: Result) -> list[str]:
    """A row as text, in the order of HEADS; sizes in MiB above the baseline."""
    fraction, measured, predicted = row["fraction"], row.get("measured"), row.get("predicted")
    label = row["arm"] if row["arm"] != "budget" else "none" if fraction is None else f"{fraction:.0%}"
    kept = row["failure"] or ("refused" if row["refused"] is not None else "yes")
    bound = row["budget"] - row["baseline"] if row["budget"] is not None and "baseline" in row else None
    return [
        row["model"],
        label,
        table.mib(bound, 2),
        table.mib(predicted, 2),
        table.mib(measured, 2),
        f"{measured / row['unplanned']:.3f}" if measured is not None else "",
        kept if row["budget"] is not None or row["failure"] else "",
        f"{abs(predicted - measured) / measured:.2%}" if predicted is not None else "",
        table.number(row.get("difference"), ".1e"),
        str(row.get("attempts", "")),
        f"{row['seconds']:.0f} s" if "seconds" in row else "",
    ]


def line(row: Result) -> str:
    """A row for whoever waits."""
    return "  ".join(f"{name} {text}" for name, text in zip(HEADS, cells(row), strict=True) if text)


def empty_row(model: str, fraction: float | None) -> Result:
    """What every row has."""
    start: Result = {"model": model, "arm": "budget", "fraction": fraction, "budget": None}
    return start | {"refused": None, "failure": ""}


# Within the process of one model


def measure(task: Task) -> Iterator[Result]:
    """One row a budget; a refused budget is followed by its minimum."""
    training = Training(task["model"], Shape(**task["shape"]))
    reference = training.run("inductor", None)
    noise = difference(training.run("inductor", None)["gradients"], reference["gradients"])
    yield empty_row(task["model"], None) | {
        "arm": "inductor",
        "unplanned": reference["peak"],
        "measured": reference["peak"],
        "difference": noise,
        "seconds": reference["seconds"],
    }
    unbound = training.row(None, None, reference)
    yield unbound
    baseline = unbound.get("baseline")
    for fraction in task["fractions"] if baseline is not None else ():
        row = training.row(fraction, baseline + int(fraction * reference["peak"]), reference)
        yield row
        if row["refused"] is not None:
            yield training.row(fraction, row["refused"], reference) | {"arm": "its minimum"}


class Training:
    """One model, which is compiled and measured under one budget after another."""

    def __init__(self, model: str, shape: Shape) -> None:
        self.name = model
        self.case: Case = make(model, shape)

    def run(self, backend: str, budget: int | None) -> dict[str, Any]:
        """Compile, take the gradients of one step, measure the next."""
        import torch

        from memgraph.machine.measure import peak_above_start

        torch._dynamo.reset()
        self.case.clear()
        gc.collect()
        options = {"options": {"budget": budget}} if backend == "memgraph" else {}
        compiled = torch.compile(self.case.loss, backend=backend, fullgraph=True, **options)

        def step() -> None:
            torch.manual_seed(SEED)
            compiled(*self.case.inputs).backward()

        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        # In numpy: tensors held here would count as part of the baseline of the budgets to come.
        gradients = {
            name: parameter.grad.numpy().copy()
            for name, parameter in self.case.model.named_parameters()
            if parameter.grad is not None
        }
        self.case.clear()
        peak = peak_above_start(step)
        self.case.clear()
        return {"gradients": gradients, "peak": peak, "seconds": seconds}

    def row(self, fraction: float | None, budget: int | None, reference: dict[str, Any]) -> Result:
        """The model under `budget`."""
        import memgraph

        row = empty_row(self.name, fraction) | {"budget": budget, "unplanned": reference["peak"]}
        try:
            run = self.run("memgraph", budget)
        except memgraph.BudgetError as refusal:
            return row | {"refused": refusal.minimum}
        except Exception as error:
            traceback.print_exc()
            return row | {"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:LONGEST_MESSAGE]}"}
        report = memgraph.report()
        row |= {
            "baseline": report.baseline,
            "predicted": report.predicted_peak - report.baseline,
            "measured": run["peak"],
            "difference": difference(run["gradients"], reference["gradients"]),
            "attempts": report.attempts,
            "source": report.source_of_peak,
            "seconds": run["seconds"],
            "stages": report.stages,
            "notes": report.notes,
        }
        return row | {"failure": "; ".join(wrong(row))}


def wrong(row: Result) -> Iterator[str]:
    """What is wrong with a row that trained."""
    if row["budget"] is not None and row["measured"] > row["budget"] - row["baseline"]:
        yield f"{row['measured'] - (row['budget'] - row['baseline'])} bytes over the budget"
    if not row["difference"] <= TOLERANCE:
        yield f"gradients differ by {row['difference']:.1e}"


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest difference of an entry, relative to the largest entry of its gradient.

    One that is zero but for rounding (the bias of BERT's keys) is measured by the largest gradient instead.
    """
    if found.keys() != wanted.keys():
        return float("inf")
    largest = max(float(abs(gradient).max()) for gradient in wanted.values())
    worst = 0.0
    for name, gradient in wanted.items():
        scale = max(float(abs(gradient).max()), 1e-4 * largest)
        worst = max(worst, float(abs(found[name] - gradient).max()) / scale)
    return worst


if __name__ == "__main__":
    typer.run(main)
