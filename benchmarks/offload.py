"""Offload on one machine: allocated and resident memory, step time, and whether anything grows over many steps.

    inductor           nothing leaves
    memgraph disk      memgraph under a budget, the scratch folder as its only lever
    memgraph both      the same with recompute beside it
    memgraph again     the same budget by recompute alone
    memgraph host      host memory as the only lever (on CUDA; on the CPU it would save nothing)
    memgraph staged    as memgraph disk, never by GPUDirect (on CUDA, where asked for)
    memgraph direct    as memgraph disk, always by GPUDirect (the same)
    save_on_cpu        Inductor under torch.autograd.graph.save_on_cpu(pin_memory=True) (on CUDA)
    hooks              Inductor, its saved tensors through saved_tensors_hooks, torch.save and torch.load, one at a time

Each arm is a process of its own that compiles, runs a step, and then steps in turn with the others. Resident memory is
the kernel's high-water mark (VmHWM, what ru_maxrss reads), reset after the compilation. MALLOC_MMAP_THRESHOLD_ is 1 MiB
in every arm: without it glibc keeps freed blocks of up to 32 MiB, and what is resident says nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated, Any

import machine
import typer
from models import Shape, make

MIB = machine.MIB
SEED = 1234
ARMS = {
    "cpu": ("inductor", "memgraph disk", "memgraph both", "memgraph again", "hooks"),
    "cuda": ("inductor", "memgraph host", "memgraph disk", "memgraph both", "memgraph again", "save_on_cpu"),
}
DISK, HOST = "nvme", "host"
LEVERS: dict[str, dict[str, Any]] = {
    "memgraph disk": {"recompute": False, "tiers": (DISK,)},
    "memgraph host": {"recompute": False, "tiers": (HOST,)},
    "memgraph staged": {"recompute": False, "tiers": (DISK,), "gpudirect": False},
    "memgraph direct": {"recompute": False, "tiers": (DISK,), "gpudirect": True},
    "memgraph both": {"tiers": (HOST, DISK)},
    "memgraph again": {"tiers": ()},
}


def main(
    model: str = "llama",
    layers: int = 8,
    hidden: int = 512,
    sequence: int = 4096,
    vocabulary: int = 512,
    batch: int = 1,
    budget: Annotated[float, typer.Option(help="Of what Inductor allocates above the start of a step.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Timed steps of each arm, in turn.")] = 5,
    flat: Annotated[int, typer.Option(help="Steps of one more run that watches for growth; 0 for none.")] = 0,
    arms: Annotated[str, typer.Option(help="Separated by commas; by default those that the device has.")] = "",
    device: str = "cpu",
    dtype: str = "float32",
    scratch: Annotated[str, typer.Option(help="Folder for the files; by default one that is made and removed.")] = "",
    name: Annotated[str, typer.Option(help="Last part of the results' folder.")] = "cpu-offload",
) -> None:
    """Measure, print, and write to benchmarks/results."""
    shape = Shape(layers, hidden, sequence, vocabulary, batch)
    folder = tempfile.mkdtemp(dir=scratch or None, prefix="memgraph-offload-")
    common = {"model": model, "shape": vars(shape), "budget": budget, "scratch": folder}
    common |= {"device": device, "dtype": dtype}
    try:
        data: dict[str, Any] = {"machine": machine.describe(device), "shape": vars(shape), "budget": budget}
        if rounds:
            names = arms.split(",") if arms else ARMS[device]
            data["arms"] = compare([{**common, "arm": arm} for arm in names], rounds)
        if flat:
            data["flat"] = watch({**common, "arm": "memgraph both"}, flat)
        out = machine.results_folder(name)
        for arm in data.get("arms", ()):
            if trace := arm.pop("trace", None):  # of the newest memgraph arm; opens in Perfetto
                shutil.copy(trace, out / "trace.json")
    finally:
        shutil.rmtree(folder)
    (out / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    text = f"# Offload\n\n{machine.headline(data['machine'])}\n{shape}\n\n{table(data)}"
    (out / "table.md").write_text(text)
    print(f"{text}\n{out}")


class Process:
    """The worker of one arm."""

    def __init__(self, given: dict[str, Any]) -> None:
        environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(MIB))
        command = [sys.executable, __file__, "--worker", json.dumps(given)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, word: str = "") -> dict[str, Any]:
        if word:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self.process.wait()}")
        answer = json.loads(line)
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return answer

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(given: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Start every arm, one after another, then let them step in turn."""
    workers = []
    for one in given:
        print(f"{one['arm']}: compiling", file=sys.stderr, flush=True)
        workers.append(Process(one))
        workers[-1].facts = workers[-1].ask()
    times: list[list[float]] = [[] for _ in workers]
    for _ in range(rounds):
        for worker, seconds in zip(workers, times, strict=True):
            seconds.append(worker.ask("step")["seconds"])
    found = []
    for one, worker, seconds in zip(given, workers, times, strict=True):
        found.append({"arm": one["arm"], **worker.facts, **worker.ask("memory"), "seconds": seconds})
        worker.close()
    return found


def watch(given: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """What one arm holds after each of many steps."""
    worker = Process(given)
    worker.ask()
    held = [worker.ask("hold") for _ in range(steps)]
    worker.close()
    return held


def table(data: dict[str, Any]) -> str:
    lines = []
    if arms := data.get("arms"):
        first = arms[0]
        lines = [
            "MiB above the start of the step; time relative to the first arm's in the same round, median; moved: MiB a "
            "step out and back.",
            "",
            "| arm | allocated | of first | resident | of first | time | added s | moved | predicted | attempts |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for arm in arms:
            pairs = list(zip(arm["seconds"], first["seconds"], strict=True))
            ratio = statistics.median(mine / base for mine, base in pairs)
            added = statistics.median(mine - base for mine, base in pairs)
            sizes = [f"{arm[key] / MIB:.1f} | {arm[key] / first[key]:.3f}" for key in ("allocated", "resident")]
            times = [f"{ratio:.2f}", f"{added:.2f}", f"{arm.get('moved', 0) / MIB:.0f}"]
            planned = [f"{arm.get('predicted', 0) / MIB:.1f}", str(arm.get("attempts", ""))]
            lines.append(f"| {' | '.join([arm['arm'], *sizes, *times, *planned])} |")
        lines.append("")
        lines += [f"{arm['arm']}: gradients differ by {arm['difference']:.1e} (relative)." for arm in arms[1:]]
        lines.append("")
    if held := data.get("flat"):
        lines.append(f"{len(held)} steps, after the 2nd, the {len(held) // 2}th and the last, MiB:\n")
        keys = list(held[0])
        lines.append("| step | " + " | ".join(keys) + " |")
        lines.append("| ---: |" + " ---: |" * len(keys))
        for step in (1, len(held) // 2 - 1, len(held) - 1):
            lines.append(f"| {step + 1} | " + " | ".join(f"{held[step][key] / MIB:.2f}" for key in keys) + " |")
        lines.append("")
    return "\n".join(lines)


# Within the process of one arm


class Worker:
    """One model, compiled, after its first step."""

    def __init__(self, given: dict[str, Any]) -> None:
        import torch

        self.arm, self.scratch, self.device = given["arm"], given["scratch"], given["device"]
        dtype = getattr(torch, given["dtype"])
        self.case = make(given["model"], Shape(**given["shape"]), self.device, dtype)
        options: dict[str, Any] = {}
        if self.arm in LEVERS:
            options = LEVERS[self.arm] | {"budget": given["budget"]}
            tiers = options.pop("tiers")
            disk = {"path": self.scratch, "gpudirect": options.pop("gpudirect", "auto")}
            offload = {DISK: disk} if DISK in tiers else {}
            offload |= {HOST: True} if HOST in tiers and self.device == "cuda" else {}
            options["offload"] = offload or False
        backend = "memgraph" if self.arm in LEVERS else "inductor"
        extra = {"options": options} if options else {}
        self.loss = torch.compile(self.case.loss, backend=backend, fullgraph=True, **extra)
        self.own = {parameter.data_ptr() for parameter in self.case.model.parameters()}
        self.files = 0

    def step(self) -> None:
        import torch

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

    def pack(self, tensor: Any) -> Any:
        """What every tutorial does: one file a tensor, written before the forward goes on."""
        import torch

        if tensor.data_ptr() in self.own or tensor.numel() * tensor.element_size() < MIB:
            return tensor
        self.files += 1
        path = os.path.join(self.scratch, f"{os.getpid()}-{self.files}.pt")
        torch.save(tensor.clone() if tensor._base is not None else tensor, path)
        return path

    def unpack(self, packed: Any) -> Any:
        import torch

        if not isinstance(packed, str):
            return packed
        tensor = torch.load(packed)
        os.unlink(packed)
        return tensor

    def ready(self) -> dict[str, Any]:
        import torch

        from memgraph.machine.measure import peak_above_start

        start = time.perf_counter()
        self.step()
        facts: dict[str, Any] = {"compile": time.perf_counter() - start}
        reference = Path(self.scratch) / "gradients.pt"
        gradients = [p.grad.clone() for p in self.case.model.parameters() if p.grad is not None]
        if self.arm == "inductor":
            torch.save(gradients, reference)
        elif reference.exists():
            wanted = torch.load(reference, map_location=self.device)
            facts["difference"] = max(
                float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
                for a, b in zip(gradients, wanted, strict=True)
            )
            del wanted
        del gradients
        self.case.clear()
        facts["allocated"] = peak_above_start(self.step, self.device)
        self.case.clear()
        if self.device == "cuda" and self.arm in LEVERS:
            facts["trace"] = self.trace()
        if self.arm in LEVERS:
            import memgraph

            report = memgraph.report()
            facts |= {
                "predicted": report.predicted_peak - report.baseline,
                "attempts": report.attempts,
                "moved": report.bytes_on(DISK) + report.bytes_on(HOST),
                "stall": report.stall_time,
            }
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        self.start = _status("VmRSS")
        return facts

    def trace(self) -> str:
        """One step as a Chrome trace, in which the copies can be seen to overlap the kernels; returns the file."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            self.timed()
        path = os.path.join(self.scratch, f"{self.arm.replace(' ', '-')}.json")
        profiled.export_chrome_trace(path)
        return path

    def timed(self) -> dict[str, Any]:
        self.synchronize()
        start = time.perf_counter()
        self.step()
        self.synchronize()
        seconds = time.perf_counter() - start
        self.case.clear()
        return {"seconds": seconds}

    def synchronize(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def memory(self) -> dict[str, Any]:
        return {"resident": _status("VmHWM") - self.start}

    def hold(self) -> dict[str, Any]:
        """Bytes that stand after one more step."""
        from memgraph import runtime
        from memgraph.machine.measure import allocated_bytes

        self.timed()
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


def work(given: dict[str, Any]) -> None:
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        worker = Worker(given)
        answer(worker.ready())
        asked = {"step": worker.timed, "memory": worker.memory, "hold": worker.hold}
        for line in sys.stdin:
            answer(asked[line.strip()]())
    except Exception as error:
        traceback.print_exc()
        answer({"failure": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]))
    else:
        typer.run(main)
