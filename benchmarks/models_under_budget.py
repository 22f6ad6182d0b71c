"""Is a budget kept, by every family of models, with the same gradients?

Writes a table and JSON to benchmarks/results. Each model runs in a fresh process. The yardstick is Inductor
without memgraph, measured; budgets are fractions of what it allocates above the start of a step, given as
bytes. Where a budget is refused, the minimum that the refusal names is the next budget, and that must be
kept. Dropout is on where the model has it: every step starts from one seed.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated, Any

import machine
import typer
from models import FACTORIES, Case, Shape, make

MIB = machine.MIB
FRACTIONS = (1.0, 0.6, 0.4, 0.25)
# Relative to the largest entry of each gradient; the reductions of two schedules differ in their order.
TOLERANCE = 1e-4
SEED = 1234


def main(
    models: Annotated[str, typer.Option(help="Which models, separated by commas.")] = ",".join(FACTORIES),
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
    shape = Shape(layers, hidden, sequence, vocabulary, batch, dropout)
    rows: list[dict[str, Any]] = []
    folder = machine.results_folder(name)
    for model in models.split(","):
        rows += in_a_process(model, shape, [float(part) for part in fractions.split(",")])
        write(folder, rows, shape)
    print(table(rows))
    print(f"\n{folder}")
    if any(row["failure"] for row in rows):
        raise typer.Exit(1)


def in_a_process(model: str, shape: Shape, fractions: list[float]) -> list[dict[str, Any]]:
    """The rows of one model, measured in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        given = json.dumps({"model": model, "shape": vars(shape), "fractions": fractions, "out": out.name})
        done = subprocess.run([sys.executable, __file__, "--one", given], check=False)
        rows = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    if done.returncode:
        rows.append(_row(model, None) | {"failure": f"the process ended with {done.returncode}"})
    return rows


# Within the process of one model


class Bench:
    """One model; compiles and measures it under one budget after another."""

    def __init__(self, model: str, shape: Shape) -> None:
        self.name = model
        self.case: Case = make(model, shape)

    def train(self, backend: str, budget: int | None) -> dict[str, Any]:
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

    def rows(self, fractions: list[float]) -> Any:
        """One row a budget; a refused budget is followed by its minimum."""
        reference = self.train("inductor", None)
        again = self.train("inductor", None)
        noise = _difference(again["gradients"], reference["gradients"])
        yield _row(self.name, None) | {
            "arm": "inductor",
            "unplanned": reference["peak"],
            "measured": reference["peak"],
            "difference": noise,
            "seconds": reference["seconds"],
        }
        unbound = self.budgeted(None, None, reference)
        yield unbound
        baseline = unbound.get("baseline")
        if baseline is None:
            return
        for fraction in fractions:
            row = self.budgeted(fraction, baseline + int(fraction * reference["peak"]), reference)
            yield row
            if row["refused"] is not None:
                yield self.budgeted(fraction, row["refused"], reference) | {"arm": "its minimum"}

    def budgeted(self, fraction: float | None, budget: int | None, reference: dict[str, Any]) -> dict[str, Any]:
        """One row: the model under `budget`."""
        from memgraph.base.errors import BudgetError
        from memgraph.reporting.log import report as newest

        row = _row(self.name, fraction) | {"budget": budget, "unplanned": reference["peak"]}
        try:
            run = self.train("memgraph", budget)
        except BudgetError as refusal:
            return row | {"refused": refusal.minimum}
        except Exception as error:
            traceback.print_exc()
            return row | {"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        report = newest()
        row |= {
            "baseline": report.baseline,
            "predicted": report.predicted_peak - report.baseline,
            "measured": run["peak"],
            "difference": _difference(run["gradients"], reference["gradients"]),
            "attempts": report.attempts,
            "source": report.source_of_peak,
            "seconds": run["seconds"],
            "stages": report.stages,
            "notes": report.notes,
        }
        row["failure"] = _failure(row)
        return row


def _row(model: str, fraction: float | None) -> dict[str, Any]:
    return {
        "model": model,
        "arm": "budget",
        "fraction": fraction,
        "budget": None,
        "refused": None,
        "failure": "",
    }


def _failure(row: dict[str, Any]) -> str:
    """What is wrong with a row that trained: "" where nothing is."""
    wrong = []
    if row["budget"] is not None and row["measured"] > row["budget"] - row["baseline"]:
        over = row["measured"] - (row["budget"] - row["baseline"])
        wrong.append(f"{over} bytes over the budget")
    if not row["difference"] <= TOLERANCE:
        wrong.append(f"gradients differ by {row['difference']:.1e}")
    return "; ".join(wrong)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> float:
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


def one(given: dict[str, Any]) -> None:
    """Measure one model, a line of JSON a row."""
    bench = Bench(given["model"], Shape(**given["shape"]))
    with open(given["out"], "a") as out:
        for row in bench.rows(given["fractions"]):
            print(line(row), file=sys.stderr, flush=True)
            print(json.dumps(row), file=out, flush=True)


# Output

COLUMNS = ("model", "budget", "bytes", "predicted", "measured", "of unplanned", "kept", "error") + (
    "gradients",
    "attempts",
    "compile",
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text, in the order of COLUMNS; sizes in MiB above the baseline."""

    def size(nbytes: float | None) -> str:
        return "" if nbytes is None else f"{nbytes / MIB:.2f}"

    fraction, measured, predicted = row["fraction"], row.get("measured"), row.get("predicted")
    label = row["arm"] if row["arm"] != "budget" else "none" if fraction is None else f"{fraction:.0%}"
    kept = row["failure"] or ("refused" if row["refused"] is not None else "yes")
    bound = row["budget"] - row["baseline"] if row["budget"] is not None and "baseline" in row else None
    return [
        row["model"],
        label,
        size(bound),
        size(predicted),
        size(measured),
        f"{measured / row['unplanned']:.3f}" if measured is not None else "",
        kept if row["budget"] is not None or row["failure"] else "",
        f"{abs(predicted - measured) / measured:.2%}" if predicted is not None else "",
        f"{row['difference']:.1e}" if "difference" in row else "",
        str(row.get("attempts", "")),
        f"{row['seconds']:.0f} s" if "seconds" in row else "",
    ]


def line(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {text}" for name, text in zip(COLUMNS, cells(row), strict=True) if text)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def write(folder: Path, rows: list[dict[str, Any]], shape: Shape) -> None:
    """results.json and table.md; called after every model, so that a run cut short leaves what it has."""
    where = machine.describe()
    data = {"machine": where, "shape": vars(shape), "rows": rows}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    text = f"# Models under a budget\n\n{machine.headline(where)}\n{shape}\n\nMiB above the baseline; error is "
    text += "|predicted - measured| / measured; gradients against Inductor without memgraph, relative.\n\n"
    (folder / "table.md").write_text(text + table(rows) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
    if sys.argv[1:2] == ["--one"]:
        one(json.loads(sys.argv[2]))
    else:
        typer.run(main)
