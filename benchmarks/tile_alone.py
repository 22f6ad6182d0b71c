"""The stages loss and mlp of tile.py: a module alone, by memgraph in shards and by what torch has."""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import harness
from benchmarks.arm import Arm, newest_report, refusals, tiled
from benchmarks.harness import Result, Start, Task
from tests.support.models.blocks import Head, SwiGLU
from tests.support.models.sized import Case

WORK = "benchmarks.tile_alone:work"
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


def rows(stage: str, settings: dict[str, Any], start: Start) -> Iterator[Result]:
    """The arms of a stage, against gradients of more digits than theirs."""
    shape = SHAPES["small" if settings["small"] else settings["device"]][stage]
    task = {"stage": stage, "shape": shape, "device": settings["device"], "dtype": settings["dtype"]}
    with tempfile.TemporaryDirectory(prefix="memgraph-tile-") as folder:
        task["gradients"] = f"{folder}/gradients.pt"
        (answer,) = start(WORK, task | {"arm": REFERENCE}).results()
        if "failure" in answer:
            raise RuntimeError(f"no reference: {answer['failure']}")
        tasks = {arm: task | {"arm": arm} for arm in chosen(stage, settings["arms"])}
        results = harness.compare(WORK, tasks, settings["rounds"], start)
    first = next(iter(results.values()))
    for row in results.values():
        row["time_ratio"] = harness.median(harness.ratios(row, first))
        row["peak_ratio"] = row["peak_bytes"] / first["peak_bytes"] if {"peak_bytes"} <= row.keys() & first else None
        yield row


def chosen(stage: str, wanted: str) -> list[str]:
    """The first arm, and those of the rest that torch has and that start with one of `wanted`."""
    starts = tuple(wanted.split(",")) if wanted else ("",)
    arms = [arm for arm in ARMS[stage] if arm == ARMS[stage][0] or arm.startswith(starts)]
    return [arm for arm in arms if not arm.startswith("linear_cross_entropy") or fused_options(1)]


# Within the process of one arm


@dataclasses.dataclass
class Alone(Case):
    """A module and its inputs, the first of which has a gradient."""

    tangent: torch.Tensor | None = None
    """The tangent of the output; None for a loss."""

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
    module.logits_dtype = wide
    x = case.inputs[0].detach().to(wide).requires_grad_()
    for piece in torch.arange(x.shape[1]).chunk(PIECES):
        tokens = slice(int(piece[0]), int(piece[-1]) + 1)
        out = module(x[:, tokens], *(given[:, tokens] for given in case.inputs[1:]))
        if case.tangent is None:
            (out * len(piece) / x.shape[1]).backward()  # the loss is the mean of all tokens
        else:
            out.backward(case.tangent[:, tokens].to(wide))
    return Alone(module, (x,), module).gradients()


def fused_options(tokens: int | None) -> Any:
    """Options of torch's own loss that makes no logits; None where torch lacks it (without options, it makes them)."""
    if not hasattr(F, "linear_cross_entropy") or not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        return None
    return torch.nn.LinearCrossEntropyOptions(**({"batch_chunk_size": tokens} if tokens else {}))


def fused(module: Head, options: Any, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.linear_cross_entropy(x.flatten(0, 1), module.weight, labels.flatten(), options=options)


def work(task: Task) -> Iterator[Result]:
    """The reference leaves its gradients in a file; an arm gives its first result, and an answer to each word."""
    arm = ModuleArm(task)
    if task["arm"] == REFERENCE:
        torch.save(reference(arm.case), task["gradients"])
        yield {}
    else:
        yield from arm.results()


class ModuleArm(Arm):
    """One arm of a comparison, after its first step."""

    case: Alone

    def __init__(self, task: Task) -> None:
        self.stage, self.arm, self.device = task["stage"], task["arm"], task["device"]
        self.path = task["gradients"]
        self.case = alone(self.stage, task["shape"], self.device, getattr(torch, task["dtype"]))
        self.loss = self.call()

    def call(self) -> Callable[..., torch.Tensor]:
        """The module as the arm runs it."""
        module = self.case.model
        kind, _, detail = self.arm.partition(" ")
        if kind == "inductor":
            return torch.compile(module)
        if kind == "checkpoint":
            checkpoint = torch.utils.checkpoint.checkpoint
            return torch.compile(lambda x: checkpoint(module, x, use_reentrant=False))
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

    def ready(self) -> Result:
        """What the first step costs and makes, and the peak of the second."""
        from memgraph.machine.measure import peak_above_start

        start = time.perf_counter()
        self.step()
        answer: Result = {"compile_seconds": time.perf_counter() - start}
        wanted = torch.load(self.path, map_location=self.device)
        for name, gradient in self.case.gradients().items():
            missed = float((gradient.to(wanted[name].dtype) - wanted[name]).norm() / wanted[name].norm())
            answer[f"error_{name.removesuffix('.weight')}"] = missed
        del wanted, gradient  # else they would stand when the step starts
        self.case.clear()
        answer["peak_bytes"] = peak_above_start(self.step, self.device)
        if self.arm.startswith("memgraph"):
            report = newest_report()
            answer |= {"predicted_bytes": report.predicted_peak - report.baseline}
            answer |= {"tiled": tiled(report), "refusals": refusals(report)}
        self.case.clear()
        return answer
