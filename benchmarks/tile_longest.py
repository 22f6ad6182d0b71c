"""The stage longest of tile.py: the longest sequence that is planned under a budget, and one real step of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.arm import compiled, newest_report, refusals, synchronize, tiled
from benchmarks.harness import Result, Start, Task
from tests.support.models.sized import LONGEST as MOST_TOKENS
from tests.support.models.sized import long_llama

STEP = 512  # tokens; sequences are multiples
SHAPE = {"layers": 4, "hidden": 256, "inner": 688, "heads": 4, "vocabulary": 32768}
SMALL = {"layers": 1, "hidden": 64, "inner": 172, "heads": 2, "vocabulary": 2048}
# By arm, memgraph's options beside the budget; None for Inductor alone.
ARMS = {"inductor": None, "save + recompute": {}, "save + recompute + tile": {"tile": True}}
RETRIES = 3  # lengths that are tried where Inductor lowers a plan into more than it said


def batch(shape: dict[str, int], length: int, device: str) -> dict[str, torch.Tensor]:
    """One sequence, which is its own labels."""
    ids = torch.randint(0, shape["vocabulary"], (1, length), device=device)
    return {"input_ids": ids, "labels": ids}


def rows(settings: dict[str, Any], start: Start) -> Iterator[Result]:
    """By arm, the longest sequence that is planned under the budget, and one real step of that length."""
    from memgraph.base.sizes import parse_size

    budget = parse_size(settings["budget"])
    shape = SHAPE | (SMALL if settings["small"] else {})
    task = {"shape": shape, "budget": budget, "mask": settings["mask"], "most": settings["most"]}
    task |= {"device": settings["device"], "dtype": settings["dtype"]}
    reference = None
    for arm, options in ARMS.items():
        mine = task | {"options": options}
        (row,) = start("benchmarks.tile_longest:longest_planned", mine | {"stage": "longest"}).results()
        row = {"arm": arm, "budget_bytes": budget} | row
        if length := row.get("planned_tokens"):
            row |= trained_at(mine, length, row["baseline_bytes"], start)
        reference = reference or row.get("tokens")
        row["times_as_long"] = row["tokens"] / reference if reference and row.get("tokens") else None
        yield row


def trained_at(task: Task, length: int, baseline: int, start: Start) -> Result:
    """Train at a length; where that is refused, at the length for which the refusal's minimum says that it would do."""
    refused: list[tuple[int, int]] = []
    for _ in range(RETRIES):
        (answer,) = start("benchmarks.tile_longest:one_step", task | {"stage": "step", "tokens": length}).results()
        if "minimum" not in answer:
            break
        refused.append((length, answer["minimum"]))
        share = (task["budget"] - baseline) / (answer["minimum"] - baseline)
        length = max(STEP, min(length - STEP, int(length * share) // STEP * STEP))
    else:
        answer = {"failure": f"refused at {', '.join(f'{tokens} (needs {size})' for tokens, size in refused)}"}
    return answer | {"refused": refused}


# Within a process


def longest_planned(task: Task) -> Iterator[Result]:
    """The longest multiple of STEP tokens that memgraph plans under the budget: by doubling, then by bisection."""
    search = Search(long_llama(task["shape"], task["device"], task["dtype"], task["mask"]), task)
    start = time.perf_counter()
    most = min(MOST_TOKENS, task["most"])
    low, high = 0, STEP
    while low < most and search.fits(high):
        low, high = high, min(2 * high, most)
    while high - low > STEP:
        middle = (low + high) // (2 * STEP) * STEP
        low, high = (middle, high) if search.fits(middle) else (low, middle)
    yield search.answer(low) | {"plans": search.plans, "search_seconds": time.perf_counter() - start}


class Search:
    """Plans one model at one length after another; nothing is compiled."""

    def __init__(self, model: Any, task: Task) -> None:
        self.model, self.task = model, task
        self.fitting: dict[int, Any] = {}
        """By length, the report of the plan."""
        self.plans = 0

    def fits(self, length: int) -> bool:
        """Whether a step of `length` tokens stays within the budget, by the plan."""
        import memgraph

        budget, options = self.task["budget"], self.task["options"]
        self.plans += 1
        asked = {"budget": None} if options is None else {"budget": budget} | options
        inputs = batch(self.task["shape"], length, self.task["device"])
        try:
            report = memgraph.plan(self.model, options=asked, **inputs)
        except memgraph.BudgetError:
            return False
        if options is None and report.unplanned_peak > budget:
            return False
        self.fitting[length] = report
        return True

    def answer(self, length: int) -> Result:
        """The length that was found; 0 for none."""
        if not length:
            return {"failure": f"not even {STEP} tokens fit"}
        report = self.fitting[length]
        peak = report.unplanned_peak if self.task["options"] is None else report.predicted_peak
        return {"planned_tokens": length, "planned_peak_bytes": peak, "baseline_bytes": report.baseline}


def one_step(task: Task) -> Iterator[Result]:
    """Train: a first step that compiles, one whose peak is measured, one that is timed."""
    import memgraph

    device, length, budget = task["device"], task["tokens"], task["budget"]
    model = long_llama(task["shape"], device, task["dtype"], task["mask"])
    inputs = batch(task["shape"], length, device)
    options = task["options"]
    loss = compiled(model, options if options is None else options | {"budget": budget})

    def step() -> None:
        loss(**inputs).backward()

    def seconds() -> float:
        start = time.perf_counter()
        step()
        synchronize(device)
        spent = time.perf_counter() - start
        model.zero_grad(set_to_none=True)
        return spent

    try:
        first = seconds()
    except memgraph.BudgetError as refusal:
        yield {"minimum": refusal.minimum}
        return
    peak = memgraph.measure_peak(step, device)
    model.zero_grad(set_to_none=True)
    timed = seconds()
    answer = {"tokens": length, "peak_bytes": peak, "kept": "yes" if peak <= budget else "no"}
    answer |= {"seconds": timed, "microseconds_a_token": 1e6 * timed / length, "first_step_seconds": first}
    if options is not None:
        report = newest_report()
        answer |= {"predicted_bytes": report.predicted_peak, "attempts": report.attempts}
        answer |= {"tiled": tiled(report), "refusals": refusals(report)}
    yield answer
