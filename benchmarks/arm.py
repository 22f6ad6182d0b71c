"""Within the process of one arm: a model and its compiled loss, which steps when it is told to."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness import Result
from tests.support.models.sized import Case

SEED = 1234
# What a process keeps cached between its turns the next process may lack, so on CUDA it is given back. The first step
# of the next turn then allocates afresh, and is not timed.
CUDA_STEPS = 5


class Arm:
    """Whoever derives from it sets the fields, and says in `ready` what the arm is."""

    case: Case
    """The model and its batch."""
    device: str
    loss: Callable[..., torch.Tensor]
    """The compiled loss."""

    def ready(self) -> Result:
        """The first result: what compiling cost, and what the arm takes."""
        raise NotImplementedError

    def results(self) -> Iterator[Result]:
        """The first result, and then the answer to each word."""
        first = self.ready()
        self.give_back()
        yield first
        if "refused" not in first:
            for line in sys.stdin:
                yield self.answer(line.strip())

    def answer(self, word: str) -> Result:
        """The answer to a word; every arm knows `step`."""
        if word != "step":
            raise ValueError(f"no answer to {word!r}")
        return {"seconds": self.timed()}

    def step(self) -> None:
        """Forward and backward, with the same draws each time."""
        torch.manual_seed(SEED)
        self.loss(*self.case.inputs).backward()

    def timed(self) -> float:
        """Seconds of one step; on CUDA the median of a few, after one that is not counted."""
        if self.device != "cuda":
            return self.seconds()
        self.seconds()
        seconds = statistics.median(self.seconds() for _ in range(CUDA_STEPS))
        self.give_back()
        return seconds

    def seconds(self) -> float:
        """Seconds of one step, from the same allocations to the same allocations."""
        self.case.clear()
        synchronize(self.device)
        start = time.perf_counter()
        self.step()
        synchronize(self.device)
        seconds = time.perf_counter() - start
        self.case.clear()
        return seconds

    def give_back(self) -> None:
        """Give the device what only this process keeps cached."""
        if self.device == "cuda":
            torch.cuda.empty_cache()


def synchronize(device: str) -> None:
    """Wait for what a device has been given to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def compiled(model: Any, options: dict[str, Any] | None) -> Any:
    """The model by Inductor where `options` is None, else by memgraph without its caches."""
    if options is None:
        return torch.compile(model, backend="inductor", fullgraph=True)
    return torch.compile(model, backend="memgraph", fullgraph=True, options={"budget": None, "cache": False} | options)


def newest_report() -> Any:
    """memgraph's report of what was compiled last."""
    import memgraph

    return memgraph.report()


def tiled(report: Any) -> str:
    """What a report says was tiled, as in "4 in 8, 1 in 16"."""
    counts: dict[int, int] = {}
    for decision in report.decisions:
        if decision.action.lever == "tile":
            shards = decision.action.shards
            counts[shards] = counts.get(shards, 0) + 1
    return ", ".join(f"{regions} in {shards}" for shards, regions in counts.items())


def refusals(report: Any) -> list[str]:
    """What a report says was not done, and why."""
    return [f"{refusal.what}: {refusal.reason}" for refusal in report.refusals]
