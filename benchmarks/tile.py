"""Tiles: memory, time and gradients of a loss alone, an MLP alone and whole models, beside what torch has.

    python -m benchmarks.tile --stages loss,mlp

    loss      a head with its cross entropy alone, gradients of its input and its weight
    mlp       a SwiGLU MLP alone, gradients from a fixed tangent
    compile   seconds of a cold compile with tiles and without
    longest   the longest sequence of a Llama under a budget, planned and then really trained
    planned   what the planner says of a loss too large to be run here, on meta tensors
    models    gradients of small real models, tiled against untiled

Everything that is compiled runs in a process of its own. Arms are timed in turn (benchmarks/harness.py). Peaks are
measured, in MiB above what stands when the step starts, the gradients that it makes included. Each stage writes
<stage>.json and <stage>.md to the results' folder.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from benchmarks import harness, table, tile_alone, tile_longest, tile_models, tile_planned
from benchmarks.harness import Process, Result, Start

HIDDEN_COLUMNS = ("failure", "refusals", "stages", "budget_bytes", "baseline_bytes", "plans", "first_step_seconds")
STAGES: dict[str, Callable[[dict[str, Any], Start], Iterator[Result]]] = {
    "loss": functools.partial(tile_alone.rows, "loss"),
    "mlp": functools.partial(tile_alone.rows, "mlp"),
    "compile": tile_planned.compile_rows,
    "longest": tile_longest.rows,
    "planned": tile_planned.planned_rows,
    "models": tile_models.rows,
}
NOTES = {
    "loss": "peak above the start of the step; time relative to the first arm's in the same round; errors of gradients "
    "relative to float64 (float32 for bfloat16), by norm.",
    "mlp": "as for the loss; what is predicted counts the tangent, which here stands before the step.",
    "compile": "the first step with empty caches, one thread compiling; ratios to Inductor in the same round.",
    "longest": "the longest sequence planned under the budget, which counts the baseline; then one step of it.",
    "planned": "by the planner, above the baseline; nothing was run.",
    "models": "float32 against plain Inductor (and float64: against eager float64), bfloat16 against eager float32; "
    "of the same weights, relative, by norm.",
}


def main(
    stages: Annotated[str, typer.Option(help="By commas.")] = "loss,mlp,compile,longest,planned,models",
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm, and cold compiles.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    budget: Annotated[str, typer.Option(help="Of the stage longest, baseline included.")] = "1GiB",
    mask: Annotated[bool, typer.Option(help="Of the stage longest: a mask of sequence x sequence.")] = False,
    most: Annotated[int, typer.Option(help="Of the stage longest: tokens beyond which it does not look.")] = 1 << 20,
    models: Annotated[str, typer.Option(help="Of the stage models.")] = "llama,qwen3,gemma3,gemma4,gpt_oss,gpt2,t5,"
    "qwen3_moe",
    shards: Annotated[str, typer.Option(help="Of the stage models; in bfloat16 the last.")] = "2,3,8",
    arms: Annotated[str, typer.Option(help="Of loss and mlp: only arms that start with one of these.")] = "",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "",
    small: Annotated[bool, typer.Option(hidden=True, help="Shapes that only try this program.")] = False,
) -> None:
    """Measure, print, and write to benchmarks/results."""
    wanted = stages.split(",")
    if unknown := set(wanted) - set(STAGES):
        raise typer.BadParameter(f"no stage {', '.join(sorted(unknown))}; there are: {', '.join(STAGES)}")
    harness.use_few_threads(device)
    settings = {"device": device, "dtype": "bfloat16" if device == "cuda" else "float32", "rounds": rounds}
    settings |= {"budget": budget, "mask": mask, "most": most, "small": small, "arms": arms}
    settings |= {"models": models.split(","), "shards": [int(part) for part in shards.split(",")]}
    record, failed = harness.Record(name or f"{device}-tile", device), False
    with record.log("a") as log:

        def start(work: str, task: harness.Task, environment: dict[str, str] | None = None) -> Process:
            harness.say(
                "  ".join(str(task[key]) for key in ("stage", "arm", "model", "options", "tokens") if key in task)
            )
            return Process(work, task, log, environment)

        for stage in wanted:
            rows: list[Result] = []
            for row in STAGES[stage](settings, start):
                rows.append(row)
                failed |= "failure" in row
                page = record.write(
                    f"Tiles: {stage}", {"settings": settings, "rows": rows}, body(stage, rows), stage, stage
                )
            print(page)
    print(record.folder)
    if failed:
        raise typer.Exit(1)


def body(stage: str, rows: list[Result]) -> str:
    """The page below its headline: whatever the rows have, but for what only the JSON holds."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in HIDDEN_COLUMNS]
    heads = [key.replace("_bytes", " MiB").replace("_", " ") for key in keys]
    shown = table.markdown(heads, [[cell(key, row.get(key)) for key in keys] for row in rows])
    return "\n".join([NOTES[stage], "", shown, *(f"\n{remark}" for remark in remarks(rows))])


def remarks(rows: list[Result]) -> Iterator[str]:
    """What went wrong, and what was not tiled."""
    for row in rows:
        name = f"{row.get('model', '')} {row.get('arm', '')} {row.get('dtype', '')}".strip()
        if "failure" in row:
            yield f"{name} failed: {row['failure']}"
        for refused in row.get("refusals", ()):
            yield f"{name} did not {refused}"


def cell(key: str, value: Any) -> str:
    """A figure, in the unit that its key names."""
    if value is None or value == []:
        return ""
    if key == "refused":
        return ", ".join(f"{tokens} needs {table.mib(size)} MiB" for tokens, size in value)
    if isinstance(value, list):
        value = statistics.median(value)
    if key.endswith("bytes"):
        return table.mib(value)
    if key.endswith("ratio"):
        return f"{value:.3f}"
    if "error" in key:
        return f"{value:.1e}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    typer.run(main)
