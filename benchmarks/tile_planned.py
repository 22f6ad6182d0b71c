"""Two stages of tile.py: compile, seconds of cold compiles, and planned, a loss on meta tensors."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import harness, table
from benchmarks.arm import compiled, newest_report, refusals, synchronize, tiled
from benchmarks.harness import Result, Start, Task
from benchmarks.tile_longest import SMALL, batch
from tests.support.models.blocks import Head
from tests.support.models.sized import long_llama

COMPILED = {"layers": 16, "hidden": 128, "inner": 344, "heads": 4, "vocabulary": 1024, "sequence": 512}
# By arm, memgraph's options beside the budget; None for Inductor alone.
COMPILES = {"inductor": None, "memgraph untiled": {}, "memgraph tiled": {"tile": {"mlp": 8, "loss": 8}}}
PLANNED = {"sequence": 8192, "hidden": 2560, "vocabulary": 151936}
ABOVE = 5 * 10**9  # bytes above the baseline that the budget of "auto" allows


def compile_rows(settings: dict[str, Any], start: Start) -> Iterator[Result]:
    """Seconds of the first step, each in a process and a cache folder of its own; the arms in turn."""
    shape = COMPILED | (SMALL if settings["small"] else {})
    task = {"stage": "compile", "shape": shape, "device": settings["device"], "dtype": settings["dtype"]}
    rows: dict[str, Result] = {arm: {"arm": arm, "seconds": [], "cpu_seconds": []} for arm in COMPILES}
    for _ in range(settings["rounds"]):
        for arm, row in rows.items():
            with tempfile.TemporaryDirectory(prefix="memgraph-cold-") as folder:
                # One thread compiles: the C++ compilers are then children, whose CPU time can be read.
                environment = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                mine = task | {"options": COMPILES[arm]}
                (answer,) = start("benchmarks.tile_planned:cold_compile", mine, environment).results()
            for key in ("seconds", "cpu_seconds"):
                row[key] += [answer.pop(key)] if key in answer else []
            row |= answer
    for row in rows.values():
        for key in ("seconds", "cpu_seconds"):
            row[f"{key}_ratio"] = harness.median(harness.ratios(row, rows["inductor"], key))
        yield row


def cold_compile(task: Task) -> Iterator[Result]:
    """Seconds of the first step by the clock, and of CPU with the C++ compiler's."""
    model = long_llama(task["shape"], task["device"], task["dtype"])
    inputs = batch(task["shape"], task["shape"]["sequence"], task["device"])
    torch._inductor.config.force_disable_caches = True
    start, cpu = time.perf_counter(), os.times()
    compiled(model, task["options"])(**inputs).backward()
    synchronize(task["device"])
    answer: Result = {"seconds": time.perf_counter() - start}
    answer["cpu_seconds"] = sum(after - before for after, before in zip(os.times()[:4], cpu[:4], strict=True))
    if task["options"] is not None:
        report = newest_report()
        answer |= {"tiled": tiled(report), "refusals": refusals(report), "stages": report.stages}
    yield answer


def planned_rows(settings: dict[str, Any], start: Start) -> Iterator[Result]:
    """A loss alone: untiled, in 64 shards, and in as many as a budget needs."""
    yield from start("benchmarks.tile_planned:planned", {"stage": "planned", "device": settings["device"]}).results()


def planned(task: Task) -> Iterator[Result]:
    """The rows of the stage; nothing is allocated."""
    import memgraph

    for dtype in ("float32", "bfloat16"):
        with torch.device("meta"):
            head = Head(PLANNED["hidden"], PLANNED["vocabulary"]).to(getattr(torch, dtype))
            x = torch.empty(1, PLANNED["sequence"], PLANNED["hidden"], dtype=head.weight.dtype, requires_grad=True)
            labels = torch.empty(x.shape[:2], dtype=torch.int64)
        plan = functools.partial(memgraph.plan, head, x, labels, hardware=task["device"])
        baseline = plan(options={"budget": None}).baseline
        asked: dict[str, dict[str, Any]] = {
            "untiled": {"budget": None},
            "64 shards": {"budget": None, "tile": {"loss": 64}},
            f"auto under {ABOVE / 1e9:g} GB": {"budget": baseline + ABOVE, "tile": True},
        }
        for arm, options in asked.items():
            row: Result = {"arm": arm, "dtype": dtype}
            begun = time.perf_counter()
            try:
                report = plan(options=options)
            except memgraph.BudgetError as refusal:
                yield row | {"failure": f"refused: needs {table.mib(refusal.minimum - baseline)} MiB"}
                continue
            row |= {"peak_bytes": report.predicted_peak - baseline, "tiled": tiled(report)}
            row |= {"of_untiled": row["peak_bytes"] / (report.unplanned_peak - baseline)}
            row |= {"predicted_time_ratio": report.predicted_time / report.unplanned_time}
            yield row | {"planning_seconds": time.perf_counter() - begun, "refusals": refusals(report)}
