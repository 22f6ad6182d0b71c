"""One arm of offload.py within its process: compile, measure, then step, and say what is resident."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.arm import SEED, Arm, newest_report
from benchmarks.harness import Result, Task
from benchmarks.table import MIB
from tests.support.models.sized import Shape, make

REFERENCE = "inductor"
DISK, HOST = "nvme", "host"
# By arm, memgraph's options beside the budget, and the tiers that may be used.
LEVERS: dict[str, dict[str, Any]] = {
    "memgraph disk": {"recompute": False, "tiers": (DISK,)},
    "memgraph host": {"recompute": False, "tiers": (HOST,)},
    "memgraph staged": {"recompute": False, "tiers": (DISK,), "gpudirect": False},
    "memgraph direct": {"recompute": False, "tiers": (DISK,), "gpudirect": True},
    "memgraph both": {"tiers": (HOST, DISK)},
    "memgraph again": {"tiers": ()},
}


def work(task: Task) -> Iterator[Result]:
    """The arm's first result, then an answer to each word: step, memory, hold."""
    yield from OffloadArm(task).results()


class OffloadArm(Arm):
    """One model, compiled, after its first step."""

    def __init__(self, task: Task) -> None:
        self.arm, self.scratch, self.device = task["arm"], task["scratch"], task["device"]
        dtype = getattr(torch, task["dtype"])
        self.case = make(task["model"], Shape(**task["shape"]), self.device, dtype)
        extra = {"options": self.options(task["budget"])} if self.arm in LEVERS else {}
        backend = "memgraph" if self.arm in LEVERS else "inductor"
        self.loss = torch.compile(self.case.loss, backend=backend, fullgraph=True, **extra)
        self.parameters = {parameter.data_ptr() for parameter in self.case.model.parameters()}
        self.files = 0

    def options(self, budget: float) -> dict[str, Any]:
        """memgraph's options of this arm."""
        options = LEVERS[self.arm] | {"budget": budget}
        tiers = options.pop("tiers")
        disk = {"path": self.scratch, "gpudirect": options.pop("gpudirect", "auto")}
        offload: dict[str, Any] = {DISK: disk} if DISK in tiers else {}
        offload |= {HOST: True} if HOST in tiers and self.device == "cuda" else {}
        return options | {"offload": offload or False}

    def step(self) -> None:
        torch.manual_seed(SEED)
        if self.arm == "hooks":
            with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
                loss = self.loss(*self.case.inputs)
            loss.backward()
        elif self.arm == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = self.loss(*self.case.inputs)
            loss.backward()
        else:
            self.loss(*self.case.inputs).backward()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | str:
        """What every tutorial does: one file a tensor, written before the forward goes on."""
        if tensor.data_ptr() in self.parameters or tensor.numel() * tensor.element_size() < MIB:
            return tensor
        self.files += 1
        path = os.path.join(self.scratch, f"{os.getpid()}-{self.files}.pt")
        torch.save(tensor.clone() if tensor._base is not None else tensor, path)
        return path

    def unpack(self, packed: torch.Tensor | str) -> torch.Tensor:
        if not isinstance(packed, str):
            return packed
        tensor = torch.load(packed)
        os.unlink(packed)
        return tensor

    def ready(self) -> Result:
        """What compiling cost, the gradients against the reference's, the peak, and memgraph's own figures."""
        from memgraph.machine.measure import peak_above_start

        start = time.perf_counter()
        self.step()
        result: Result = {"compile": time.perf_counter() - start} | self.difference()
        self.case.clear()
        result["allocated"] = peak_above_start(self.step, self.device)
        self.case.clear()
        if self.device == "cuda" and self.arm in LEVERS:
            result["trace"] = self.trace()
        if self.arm in LEVERS:
            report = newest_report()
            result |= {
                "predicted": report.predicted_peak - report.baseline,
                "attempts": report.attempts,
                "moved": report.bytes_on(DISK) + report.bytes_on(HOST),
                "stall": report.stall_time,
            }
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        self.start = _status("VmRSS")
        return result

    def difference(self) -> Result:
        """The largest difference of a gradient's entry from the reference's; the reference leaves its gradients."""
        reference = Path(self.scratch) / "gradients.pt"
        gradients = [p.grad for p in self.case.model.parameters() if p.grad is not None]
        if self.arm == REFERENCE:
            torch.save(gradients, reference)
            return {}
        if not reference.exists():
            return {}
        wanted = torch.load(reference, map_location=self.device)
        pairs = zip(gradients, wanted, strict=True)
        return {"difference": max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)}

    def trace(self) -> str:
        """One step as a Chrome trace, in which the copies can be seen to overlap the kernels; returns the file."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            self.seconds()
        path = os.path.join(self.scratch, f"{self.arm.replace(' ', '-')}.json")
        profiled.export_chrome_trace(path)
        return path

    def timed(self) -> float:
        """Seconds of one step, on CUDA too: what a tier's disk does differs from step to step, and is to be seen."""
        return self.seconds()

    def answer(self, word: str) -> Result:
        if word == "memory":
            return {"resident": _status("VmHWM") - self.start}
        return self.held_after_a_step() if word == "hold" else super().answer(word)

    def held_after_a_step(self) -> Result:
        """Bytes that stand after one more step."""
        from memgraph import runtime
        from memgraph.machine.measure import allocated_bytes

        self.seconds()
        held = runtime.statistics()
        return {
            "allocated": allocated_bytes(self.device),
            "resident": _status("VmRSS"),
            "pool": held.host_pool,
            "file": held.nvme_file,
            "live": held.nvme_live + held.host_live,
        }


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
