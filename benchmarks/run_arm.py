"""One arm of run.py within its process: compile, measure the peak, then time steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.arm import SEED, Arm, newest_report
from benchmarks.harness import Result, Task
from memgraph import simulator
from tests.support.models.sized import Shape, make

SMALLEST = "memgraph smallest"
LONGEST = 40  # kernels that are listed
UNREACHABLE = 0.001  # a fraction whose refusal tells the smallest budget


def work(task: Task) -> Iterator[Result]:
    """The arm's first result, then the seconds of a step for each word."""
    yield from PeerArm(task).results()


class PeerArm(Arm):
    """A model and its compiled loss, after the first step."""

    def __init__(self, task: Task) -> None:
        self.device, self.arm = task["device"], task["arm"]
        shape, dtype = Shape(**task["shape"]), getattr(torch, task["dtype"])
        self.case = make(task["model"], shape, self.device, dtype)
        if self.arm["checkpointing"]:
            self.case.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.arm["activation_memory_budget"] is not None:
            import torch._functorch.config as config

            config.activation_memory_budget = self.arm["activation_memory_budget"]
        self.loss = self.case.loss

    def ready(self) -> Result:
        """What compiling cost, the loss and the gradients, the peak; or that the budget is refused."""
        from memgraph.base.errors import BudgetError
        from memgraph.machine.measure import peak_above_start

        start = time.perf_counter()
        try:
            loss = self.compile(self.arm["budget"])
        except BudgetError as refusal:
            if self.arm["name"] != SMALLEST:
                return {"refused": refusal.minimum}
            loss = self.compile(refusal.minimum)
        seconds = time.perf_counter() - start
        norms = [p.grad.double().norm() for p in self.case.model.parameters() if p.grad is not None]
        result = {"loss": loss, "gradient_norm": float(torch.stack(norms).norm()), "compile_seconds": seconds}
        self.case.clear()
        result["peak"] = peak_above_start(self.step, self.device)
        self.case.clear()
        if self.device == "cuda" and not simulator.here():
            result |= self.profiled()
        if self.arm["kind"] == "memgraph":
            report = newest_report()
            result |= {
                "predicted": report.predicted_peak - report.baseline,
                "budget": None if report.budget is None else report.budget - report.baseline,
                "attempts": report.attempts,
                "predicted_seconds": report.predicted_time,
                "stages": report.stages,
            }
        return result

    def profiled(self) -> Result:
        """What the kernels of a step take on the GPU, and the longest of them: milliseconds and how often, by name."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            self.seconds()
        kernels = [one for one in profiled.key_averages() if one.self_device_time_total]
        kernels.sort(key=lambda one: -one.self_device_time_total)
        return {
            "kernel_seconds": sum(one.self_device_time_total for one in kernels) / 1e6,
            "kernels": {one.key[:100]: [one.self_device_time_total / 1e3, one.count] for one in kernels[:LONGEST]},
        }

    def compile(self, budget: float | int | None) -> float:
        """Compile the loss under `budget`, take one step; returns the loss."""
        torch._dynamo.reset()
        if self.arm["kind"] == "inductor":
            self.loss = torch.compile(self.case.loss, backend="inductor", fullgraph=True)
        elif self.arm["kind"] == "memgraph":
            if self.arm["name"] == SMALLEST and budget is None:
                budget = UNREACHABLE
            options: dict[str, Any] = {"budget": budget}
            self.loss = torch.compile(self.case.loss, backend="memgraph", fullgraph=True, options=options)
        torch.manual_seed(SEED)
        loss = self.loss(*self.case.inputs)
        loss.backward()
        return float(loss.detach())
