"""One arm of the comparison, in a process of its own: compile, measure the peak, then time steps on demand.

Started by run.py with one argument, a JSON object (`model`, `shape`, `device`, `dtype`, `arm`). Answers are
lines of JSON on standard output: one when it is ready, then one for each line on standard input, until that
ends.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from typing import Any

import torch
from models import Case, Shape, make

SEED = 1234
# What a worker keeps cached between its turns the next worker may lack, so a CUDA worker gives it back; the
# first step of its next turn then allocates afresh, and is not timed.
CUDA_STEPS = 5
UNREACHABLE = 0.001  # a fraction whose refusal tells the smallest budget


class Worker:
    """A model and its compiled loss, after the first step."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.device, self.arm = given["device"], given["arm"]
        shape, dtype = Shape(**given["shape"]), getattr(torch, given["dtype"])
        self.case: Case = make(given["model"], shape, self.device, dtype)
        if self.arm["checkpointing"]:
            self.case.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.arm["activation_memory_budget"] is not None:
            import torch._functorch.config as config

            config.activation_memory_budget = self.arm["activation_memory_budget"]
        self.loss = self.case.loss

    def ready(self) -> dict[str, Any]:
        """Compile and measure: the answer that says what this arm is."""
        from memgraph.base.errors import BudgetError
        from memgraph.machine.measure import peak_above_start

        start = time.perf_counter()
        try:
            loss = self.compile(self.arm["budget"])
        except BudgetError as refusal:
            if self.arm["name"] != "memgraph smallest":
                return {"refused": refusal.minimum}
            loss = self.compile(refusal.minimum)
        seconds = time.perf_counter() - start
        norms = [p.grad.double().norm() for p in self.case.model.parameters() if p.grad is not None]
        answer = {
            "loss": loss,
            "gradient_norm": float(torch.stack(norms).norm()),
            "compile_seconds": seconds,
        }
        self.case.clear()
        answer["peak"] = peak_above_start(self.step, self.device)
        if self.arm["kind"] == "memgraph":
            from memgraph.reporting.log import report

            newest = report()
            answer |= {
                "predicted": newest.predicted_peak - newest.baseline,
                "budget": None if newest.budget is None else newest.budget - newest.baseline,
                "attempts": newest.attempts,
                "predicted_seconds": newest.predicted_time,
                "stages": newest.stages,
            }
        return answer

    def compile(self, budget: float | int | None) -> float:
        """Compile the loss under `budget`, take one step; returns the loss."""
        torch._dynamo.reset()
        if self.arm["kind"] == "inductor":
            self.loss = torch.compile(self.case.loss, backend="inductor", fullgraph=True)
        elif self.arm["kind"] == "memgraph":
            if self.arm["name"] == "memgraph smallest" and budget is None:
                budget = UNREACHABLE
            options = {"budget": budget}
            self.loss = torch.compile(self.case.loss, backend="memgraph", fullgraph=True, options=options)
        torch.manual_seed(SEED)
        loss = self.loss(*self.case.inputs)
        loss.backward()
        return float(loss.detach())

    def step(self) -> None:
        torch.manual_seed(SEED)
        self.loss(*self.case.inputs).backward()

    def timed(self) -> float:
        """Seconds of one step; on CUDA the median of a few, after one that is not counted."""
        if self.device != "cuda":
            return self._seconds()
        self._seconds()
        seconds = statistics.median(self._seconds() for _ in range(CUDA_STEPS))
        torch.cuda.empty_cache()
        return seconds

    def _seconds(self) -> float:
        self.case.clear()
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        self.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.case.clear()
        return seconds


def main() -> None:
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        worker = Worker(json.loads(sys.argv[1]))
        ready = worker.ready()
        if worker.device == "cuda":
            torch.cuda.empty_cache()
        answer(ready)
        if "refused" in ready:
            return
        for _ in sys.stdin:
            answer({"seconds": worker.timed()})
    except Exception as error:
        traceback.print_exc()
        answer({"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"})


if __name__ == "__main__":
    main()
