"""Tiles: memory, time and gradients of a loss alone, an MLP alone and whole models, beside what torch has.

    loss      a head with its cross entropy alone, gradients of its input and its weight
    mlp       a SwiGLU MLP alone, gradients from a fixed tangent
    compile   seconds of a cold compile with tiles and without
    longest   the longest sequence of a Llama under a budget, planned and then really trained
    planned   what the planner says of a loss too large to be run here, on meta tensors
    models    gradients of small real models, tiled against untiled

Everything that is compiled runs in a process of its own. Arms are timed in turn, one step of each a round: on a machine
that others use, what to trust is an arm's time relative to the first arm's in the same round. Peaks are measured, in
MiB above what stands when the step starts, the gradients that it makes included. Each stage writes <stage>.json and
<stage>.md to the results' folder.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import longest_sequence
import machine
import torch
import torch.nn.functional as F
import typer
import worker
from longest_sequence import Head, Row, Start, refusals, tiled
from models import Case
from rich.console import Console
from rich.table import Table
from run import Process

SHAPES = {
    "cpu": {
        "loss": {"sequence": 4096, "hidden": 256, "vocabulary": 32768},
        "mlp": {"sequence": 16384, "hidden": 512, "inner": 2048},
    },
    "cuda": {
        "loss": {"sequence": 16384, "hidden": 4096, "vocabulary": 128256},
        "mlp": {"sequence": 16384, "hidden": 4096, "inner": 14336},
    },
    "small": {
        "loss": {"sequence": 1024, "hidden": 32, "vocabulary": 2048},
        "mlp": {"sequence": 1024, "hidden": 32, "inner": 128},
    },
}
# The first arm is what the others' times are relative to; a number is that of the shards or chunks.
ARMS = {
    "loss": ("inductor", "memgraph 8", "memgraph 16", "memgraph 18", "memgraph 32", "auto_chunker 8", "auto_chunker 16")
    + ("linear_cross_entropy", "linear_cross_entropy 16", "linear_cross_entropy compiled", "eager"),
    "mlp": ("inductor", "checkpoint", "memgraph 4", "memgraph 8", "memgraph 16"),
}
REFERENCE = "reference"
PIECES = 16  # of the tokens, so that the reference's wide values fit into memory
CHUNKED_FROM = 1 << 20  # entries of the logits from which auto_chunker looks at them
WIDTH = 160  # columns of the tables where nobody looks
NO_COLUMNS = ("failure", "refusals", "stages", "budget_bytes", "baseline_bytes", "plans", "first_step_seconds")
console = Console(stderr=True, highlight=False)


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
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "",
    small: Annotated[bool, typer.Option(hidden=True, help="Shapes that only try this program.")] = False,
) -> None:
    """Measure, print, and write to benchmarks/results."""
    wanted = stages.split(",")
    if unknown := set(wanted) - set(STAGES):
        raise typer.BadParameter(f"no stage {', '.join(sorted(unknown))}; there are: {', '.join(STAGES)}")
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
    settings = {"device": device, "dtype": "bfloat16" if device == "cuda" else "float32", "rounds": rounds}
    settings |= {"budget": budget, "mask": mask, "most": most, "small": small}
    settings |= {"models": models.split(","), "shards": [int(part) for part in shards.split(",")]}
    where, folder, failed = machine.describe(device), machine.results_folder(name or f"{device}-tile"), False
    with open(folder / "workers.log", "a") as log:
        for stage in wanted:
            rows: list[Row] = []
            for row in STAGES[stage](settings, functools.partial(Worker, log)):
                rows.append(row)
                failed |= "failure" in row
                write(folder, stage, {"machine": where, "settings": settings, "rows": rows})
            show(stage, rows)
    print(folder)
    if failed:
        raise typer.Exit(1)


class Worker(Process):
    """A process that answers; told nothing, or to step."""

    def __init__(self, log: Any, task: dict[str, Any], environment: dict[str, str] | None = None) -> None:
        about = [task["stage"], *(str(task[key]) for key in ("arm", "model", "options", "tokens") if key in task)]
        console.print("  ".join(about), markup=False)
        pipe = subprocess.PIPE
        command = [sys.executable, __file__, "--worker", json.dumps(task)]
        environment = os.environ | {"KINETO_LOG_LEVEL": "6"} | (environment or {})
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)

    def answers(self) -> Iterator[Row]:
        """All that it says until it ends."""
        for line in self.process.stdout:
            yield json.loads(line)
        if code := self.process.wait():
            yield {"failure": f"the process ended with {code}"}


# Output


def write(folder: Path, stage: str, data: dict[str, Any]) -> None:
    """Called after every row, so that a run cut short leaves what it has."""
    (folder / f"{stage}.json").write_text(json.dumps(data, indent=1) + "\n")
    heads, lines = table(data["rows"])
    text = [f"# Tiles: {stage}", "", machine.headline(data["machine"]), NOTES[stage], ""]
    text += [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    text += [f"\n{remark}" for remark in remarks(data["rows"])]
    (folder / f"{stage}.md").write_text("\n".join(text) + "\n")


def show(stage: str, rows: list[Row]) -> None:
    heads, lines = table(rows)
    shown = Table(title=f"{stage}: {NOTES[stage]}", title_justify="left")
    for head in heads:
        shown.add_column(head, overflow="fold")
    for line in lines:
        shown.add_row(*line)
    out = Console(width=max(WIDTH, Console().width))
    out.print(shown, *remarks(rows), sep="\n", markup=False)


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: whatever the rows have, but for what only the JSON holds."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in NO_COLUMNS]
    heads = [key.replace("_bytes", " MiB").replace("_", " ") for key in keys]
    return heads, [[cell(key, row.get(key)) for key in keys] for row in rows]


def remarks(rows: list[Row]) -> Iterator[str]:
    """What went wrong, and what was not tiled."""
    for row in rows:
        name = f"{row.get('model', '')} {row.get('arm', '')} {row.get('dtype', '')}".strip()
        if "failure" in row:
            yield f"{name} failed: {row['failure']}"
        for what in row.get("refusals", ()):
            yield f"{name} did not {what}"


def cell(key: str, value: Any) -> str:
    if value is None or value == []:
        return ""
    if key == "refused":
        return ", ".join(f"{tokens} needs {size / machine.MIB:.1f} MiB" for tokens, size in value)
    if isinstance(value, list):
        value = statistics.median(value)
    if key.endswith("bytes"):
        return f"{value / machine.MIB:.1f}"
    if key.endswith("ratio"):
        return f"{value:.3f}"
    if "error" in key:
        return f"{value:.1e}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ").replace("|", "/")


# Arms beside each other: loss, mlp


def compare(stage: str, settings: dict[str, Any], start: Start) -> Iterator[Row]:
    """Compile the arms one after another, then time them in turn."""
    shape = SHAPES["small" if settings["small"] else settings["device"]][stage]
    task = {"stage": stage, "shape": shape, "device": settings["device"], "dtype": settings["dtype"]}
    arms = [arm for arm in ARMS[stage] if not arm.startswith("linear_cross_entropy") or fused_options(1)]
    rows: dict[str, Row] = {}
    processes: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(prefix="memgraph-tile-") as folder:
        task["gradients"] = f"{folder}/gradients.pt"
        (answer,) = start(task | {"arm": REFERENCE}).answers()
        if "failure" in answer:
            raise RuntimeError(f"no reference: {answer['failure']}")
        try:
            for arm in arms:
                processes[arm] = start(task | {"arm": arm})
                rows[arm] = {"arm": arm} | processes[arm].answer() | {"seconds": []}
                if "failure" in rows[arm]:
                    processes.pop(arm).close()
            for _ in range(settings["rounds"]):
                for arm in list(processes):
                    answer = processes[arm].step()
                    if "seconds" in answer:
                        rows[arm]["seconds"].append(answer["seconds"])
                    else:
                        rows[arm] |= answer
                        processes.pop(arm).close()
        finally:
            for process in processes.values():
                process.close()
    first = rows[arms[0]]
    for row in rows.values():
        ratios = [mine / base for mine, base in zip(row["seconds"], first["seconds"], strict=False)]
        row["time_ratio"] = statistics.median(ratios) if ratios else None
        row["peak_ratio"] = row["peak_bytes"] / first["peak_bytes"] if {"peak_bytes"} <= row.keys() & first else None
        yield row


class SwiGLU(torch.nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, inner, bias=False)
        self.up = torch.nn.Linear(hidden, inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


@dataclasses.dataclass
class Alone(Case):
    """A module and its inputs, the first of which has a gradient.  tangent: of the output; None for a loss."""

    tangent: torch.Tensor | None = None

    def clear(self) -> None:
        super().clear()
        self.inputs[0].grad = None

    def gradients(self) -> dict[str, torch.Tensor]:
        return {"x": self.inputs[0].grad} | {name: weight.grad for name, weight in self.model.named_parameters()}


def alone(stage: str, shape: dict[str, int], device: str, dtype: torch.dtype) -> Alone:
    """The case of a stage, with weights and inputs from a fixed seed."""
    torch.manual_seed(0)
    with torch.device(device):
        x = torch.randn(1, shape["sequence"], shape["hidden"]).to(dtype).requires_grad_()
        if stage == "loss":
            module = Head(shape["hidden"], shape["vocabulary"]).to(dtype)
            return Alone(module, (x, torch.randint(0, shape["vocabulary"], x.shape[:2])), module)
        module = SwiGLU(shape["hidden"], shape["inner"]).to(dtype)
        return Alone(module, (x,), module, torch.randn(x.shape).to(dtype))


def reference(case: Alone) -> dict[str, torch.Tensor]:
    """Gradients in the next wider type (float64, float32 for bfloat16), of some tokens at a time."""
    wide = torch.float64 if case.inputs[0].dtype == torch.float32 else torch.float32
    module = copy.deepcopy(case.model).to(wide)
    module.wide = wide
    x = case.inputs[0].detach().to(wide).requires_grad_()
    for piece in torch.arange(x.shape[1]).chunk(PIECES):
        tokens = slice(int(piece[0]), int(piece[-1]) + 1)
        out = module(x[:, tokens], *(given[:, tokens] for given in case.inputs[1:]))
        if case.tangent is None:
            (out * len(piece) / x.shape[1]).backward()  # what is the mean of all
        else:
            out.backward(case.tangent[:, tokens].to(wide))
    return Alone(module, (x,), module).gradients()


def fused_options(tokens: int | None) -> Any:
    """Of torch's own loss that makes no logits; None where torch lacks it (without options, it makes them)."""
    if not hasattr(F, "linear_cross_entropy") or not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        return None
    return torch.nn.LinearCrossEntropyOptions(**({"batch_chunk_size": tokens} if tokens else {}))


class Arm(worker.Worker):
    """One arm of a comparison, after its first step."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.stage, self.arm, self.device = task["stage"], task["arm"], task["device"]
        self.path = task["gradients"]
        self.case = alone(self.stage, task["shape"], self.device, getattr(torch, task["dtype"]))
        self.loss = self.call()

    def call(self) -> Callable[..., torch.Tensor]:
        module = self.case.model
        kind, _, detail = self.arm.partition(" ")
        if kind == "inductor":
            return torch.compile(module)
        if kind == "checkpoint":
            again = torch.utils.checkpoint.checkpoint
            return torch.compile(lambda x: again(module, x, use_reentrant=False))
        if kind == "memgraph":
            options = {"budget": None, "tile": {self.stage: int(detail)}, "cache": False}
            return torch.compile(module, backend="memgraph", options=options)
        if kind == "auto_chunker":
            options = {"enable": True, "num_chunk": int(detail), "output_size_threshold": CHUNKED_FROM}
            return torch.compile(module, options={f"auto_chunker.{key}": value for key, value in options.items()})
        if kind == "linear_cross_entropy":
            options = fused_options(self.case.inputs[0].shape[1] // int(detail) if detail.isdecimal() else None)
            call = functools.partial(fused, module, options)
            return torch.compile(call) if detail == "compiled" else call
        return module  # eager, and the reference

    def step(self) -> None:
        self.loss(*self.case.inputs).backward(self.case.tangent)

    def ready(self) -> Row:
        """What the first step costs and makes, and the peak of the second."""
        from memgraph.machine.measure import peak_above_start

        if self.arm == REFERENCE:
            torch.save(reference(self.case), self.path)
            return {}
        start = time.perf_counter()
        self.step()
        answer: Row = {"compile_seconds": time.perf_counter() - start}
        wanted = torch.load(self.path, map_location=self.device)
        for name, gradient in self.case.gradients().items():
            missed = float((gradient.to(wanted[name].dtype) - wanted[name]).norm() / wanted[name].norm())
            answer[f"error_{name.removesuffix('.weight')}"] = missed
        del wanted, gradient  # else they would stand when the step starts
        self.case.clear()
        answer["peak_bytes"] = peak_above_start(self.step, self.device)
        if self.arm.startswith("memgraph"):
            import memgraph

            report = memgraph.report()
            answer |= {"predicted_bytes": report.predicted_peak - report.baseline}
            answer |= {"tiled": tiled(report), "refusals": refusals(report)}
        self.case.clear()
        return answer


def fused(module: Head, options: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.linear_cross_entropy(x.flatten(0, 1), module.weight, labels.flatten(), options=options)


def answer_of_arm(task: dict[str, Any]) -> Iterator[Row]:
    """Ready, and then the seconds of a step for every line."""
    arm = Arm(task)
    yield arm.ready()
    if arm.arm != REFERENCE:
        if arm.device == "cuda":
            torch.cuda.empty_cache()  # the next arm may lack it
        for _ in sys.stdin:
            yield {"seconds": arm.timed()}


STAGES: dict[str, Callable[[dict[str, Any], Start], Iterator[Row]]] = {
    "loss": functools.partial(compare, "loss"),
    "mlp": functools.partial(compare, "mlp"),
    "compile": longest_sequence.compile_rows,
    "longest": longest_sequence.longest_rows,
    "planned": longest_sequence.planned_rows,
    "models": longest_sequence.model_rows,
}
# Within a worker, by the stage of its task.
TASKS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "loss": answer_of_arm,
    "mlp": answer_of_arm,
    "compile": longest_sequence.cold_compile,
    "longest": longest_sequence.longest_planned,
    "step": longest_sequence.one_step,
    "planned": longest_sequence.planned,
    "models": longest_sequence.gradients_of_model,
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


def work(task: dict[str, Any]) -> None:
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for row in TASKS[task["stage"]](task):
            print(json.dumps(row), file=answers, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"failure": f"{type(error).__name__}: {str(error)[:300]}"}), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]))
    else:
        typer.run(main)
