"""How far are plans from what no plan can beat, and what does each stage of the planner bring?  By predicted figures.

    python -m benchmarks.planner_gap
    python -m benchmarks.planner_gap --models llama:4,gpt2:4 --fractions 0.6,0.4

Each model is captured once and planned for shares of its activation peak: the peak of Inductor's own partition above
the baseline and the gradients that the step leaves. 25 % of it means these gradients and a quarter of the rest. It is
planned with recomputation alone, and with all levers (recompute, tile, offload to the disk). Nothing is compiled or
run. Peaks and seconds are those of the sweep and of the bound that reports print (docs/decisions/0015). The disk has
the rates that `memgraph calibrate --scratch` has kept for the folder of temporary files, else built-in ones.

The ablation has recomputation alone:

    uniform   one price a byte and one set of borders for the whole graph
    greedy    from the lowest peak, values are saved while there is room, dearest a byte first
    mixed     two uniform choices, mixed and filled: the planner before the linear program
    now       the planner
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table
from benchmarks.harness import Process, Result, Task

MODELS = "llama:4,llama:8,llama:32,qwen3:8,gemma3:6,gpt_oss:4,t5:4,vit:6,unet:3,gpt2:4"
HEADS = (
    "model",
    "values",
    "levers",
    "smallest",
    "no plan below",
    "share",
    "slow-down",
    "at best",
    "gap",
    "planning, CPU s",
)
ARMS = ("uniform", "greedy", "mixed", "now")


def main(
    models: Annotated[str, typer.Option(help="Models by commas, with their layers.")] = MODELS,
    fractions: Annotated[str, typer.Option(help="Shares of the peak, by commas.")] = "0.6,0.4,0.25,0.15",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "planner-gap",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    harness.use_few_threads()
    record, rows = harness.Record(f"cpu-{name}"), []
    shares = [float(share) for share in fractions.split(",")]
    for model in models.split(","):
        for row in Process("benchmarks.planner_gap:planned", {"model": model, "fractions": shares}).results():
            harness.say("  ".join(f"{key} {value}" for key, value in row.items()))
            rows.append(row)
        print(record.write("Plans and what no plan can beat", {"rows": rows}, _page(rows)))


def _page(rows: list[Result]) -> str:
    cells = [_cells(row) for row in rows if row.get("kind") == "plan"]
    gaps = [row["gap"] for row in rows if row.get("kind") == "plan" and row["gap"] is not None]
    told = ""
    if gaps:
        middle, worst = statistics.median(gaps), max(gaps)
        told = f"Of {len(gaps)} plans the gap is {middle:.1%} in the median, {worst:.1%} at worst.\n\n"
    stages = [
        (row["model"], f"{row['share']:.0%}", *(table.number(row[arm], "+.2%") for arm in ARMS))
        for row in rows
        if row.get("kind") == "stages"
    ]
    failed = [f"- {row}" for row in rows if "failure" in row]
    parts = [told + table.markdown(HEADS, cells), "## What each stage brings: slow-down"]
    parts += [table.markdown(("model", "share", *ARMS), stages), *failed]
    return "\n\n".join(parts)


def _cells(row: Result) -> tuple[str, ...]:
    return (
        row["model"],
        str(row["values"]),
        row["levers"],
        f"{row['smallest']:.1%}",
        f"{row['least']:.1%}",
        f"{row['share']:.0%}",
        "not reached" if row["slower"] is None else f"{row['slower']:+.2%}",
        "" if row["best"] is None else f"{row['best']:+.2%}",
        "" if row["gap"] is None else f"{row['gap']:.2%}",
        f"{row['planning']:.2f}",
    )


def planned(task: Task) -> Iterator[Result]:
    """Within a process of its own: the plans of one model."""
    import torch

    from memgraph.backend.capture import Target
    from memgraph.backend.explore import Explorer, explored
    from memgraph.backend.options import parse_options

    torch.set_num_threads(1)
    fn, args, kwargs = step_of(task["model"])
    with tempfile.TemporaryDirectory() as folder:
        offload = {"nvme": folder, "min_bytes": 4096}
        for levers, options in (("recompute", {}), ("all", {"tile": True, "offload": offload})):
            told = {"model": task["model"], "levers": levers}

            def ask(explorer: Explorer, told: Any = told) -> list[Result]:
                return [told | row for row in _judged(explorer, task["fractions"])]

            yield from explored(fn, args, kwargs, Target.of(parse_options(options), None, None), ask)


def step_of(model: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A loss and its arguments: a model of any size with its layers, or a tiny one of the zoo."""
    if ":" in model:
        case = case_of(model)
        return case.loss, case.inputs, {}
    from tests.families import FAMILIES

    module, inputs = FAMILIES[model].make()
    return module, (), inputs


def case_of(model: str) -> Any:
    """A model of any size with its layers, such as "llama:4"."""
    from tests.support.models.sized import Shape, make

    name, _, layers = model.partition(":")
    dropout = 0.1 if name == "gpt2" else 0.0
    shape = Shape(layers=int(layers), hidden=256, sequence=2048, vocabulary=4096, dropout=dropout)
    if name == "unet":  # pixels, and a quarter of the width at full size
        shape = dataclasses.replace(shape, sequence=128 * 128, hidden=128)
    return make(name, shape)


def _judged(explorer: Any, fractions: list[float]) -> list[Result]:
    """What one set of levers reaches."""
    from memgraph.backend.frontier import within
    from memgraph.base import compat

    with compat.reading_with({}):
        planning, _ = explorer.planning(None)
        plain = planning.variant(planning.cuts.plain)
        shares = Shares.of(plain)
        lowest = within(planning, 0)
        known = {
            "values": len(plain.facts.values),
            "smallest": shares.share(lowest.candidate.peak),
            "least": shares.share(lowest.variant.planner.bounds.smallest()),
        }
        rows = []
        for share in fractions:
            bound = shares.bytes(share)
            start = time.process_time()
            choice = within(planning, bound)
            took = {"planning": round(time.process_time() - start, 2)}
            rows.append({"kind": "plan", "share": share} | known | _row(plain, choice, bound) | took)
            if not planning.tiers.tiers and not planning.tiling.groups:
                rows.append({"kind": "stages", "share": share} | _stages(plain, bound))
        return rows


@dataclasses.dataclass(frozen=True)
class Shares:
    """Bytes as shares of an activation peak."""

    gradients: int
    """Bytes that the backward leaves."""
    peak: int

    @classmethod
    def of(cls, plain: Any) -> Shares:
        values = plain.facts.values
        left = {values[i].storage for i in plain.facts.backward_outputs if values[values[i].storage].kind != "primal"}
        return cls(sum(values[i].bytes for i in left), plain.planner.stock.peak)

    def bytes(self, share: float) -> int:
        return self.gradients + int(share * (self.peak - self.gradients))

    def share(self, size: int) -> float:
        return (size - self.gradients) / (self.peak - self.gradients)


def _row(plain: Any, choice: Any, bound: int) -> Result:
    """One plan against Inductor's own and against its bound, in predicted seconds of a step."""
    start = time.process_time()
    variant = choice.variant
    under = variant.planner.bounds.under(bound)
    took = time.process_time() - start
    if not choice.fits or under is None:
        return {"slower": None, "best": None, "gap": None}
    least = variant.seconds + under.seconds
    return {
        "slower": choice.seconds / plain.seconds - 1,
        "best": least / plain.seconds - 1,
        "gap": choice.seconds / least - 1,
        "bound took": round(took, 2),
    }


def _stages(plain: Any, bound: int) -> Result:
    """The slow-down of each stage's best plan."""
    found = best_of_stages(plain, bound)
    return {arm: None if c is None else c.seconds / plain.seconds for arm, c in found.items()}


def best_of_stages(plain: Any, bound: int) -> dict[str, Any]:
    """By stage of the planner, its best candidate for a graph without tiles; None where none fits."""
    from memgraph.planner import polish
    from memgraph.planner.candidates import by_time

    planner = plain.planner
    return {
        "uniform": min((c for _, c in planner.uniform.found if c.peak <= bound), key=by_time, default=None),
        "greedy": polish.fill(planner.candidates, planner.smallest(), bound)
        if planner.smallest().peak <= bound
        else None,
        "mixed": planner.without_relaxed().best(bound),
        "now": planner.best(bound),
    }


if __name__ == "__main__":
    typer.run(main)
