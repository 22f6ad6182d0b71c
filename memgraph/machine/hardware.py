"""What a device can do: rates, bandwidths and capacity, measured here or built in by name.

Planning reads these figures and never measures: `calibrate` does that when a user asks for it
(`memgraph calibrate`), `save` keeps its result, and `load` finds it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from memgraph.base.errors import OptionsError
from memgraph.base.folder import cache_folder, keep

if TYPE_CHECKING:
    from memgraph.runtime.value import Value

Device = torch.device | str

_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The figures of one device.

    Attributes:
        name: the device's own name. device: its kind, "cuda" or "cpu". flops: FLOP/s of a large matrix
        product, by dtype name ("float32", "bfloat16", ...). memory_bandwidth: bytes/s of a large copy, read
        and written bytes both counted. transcendental_rate: elements/s of exp over a large float32 tensor
        (tanh and erf are taken to be alike). kernel_overhead: seconds that a kernel costs however little it
        does. capacity: bytes of memory. link_out, link_in: bytes/s from the device to the runtime's host pool and
        back (on the CPU: of a copy in memory). measured: by `calibrate`, on the device itself.
    """

    name: str
    device: str
    flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    transcendental_rate: float
    kernel_overhead: float
    capacity: int
    link_out: float = 10e9  # what figures that were kept before links were measured are taken to mean
    link_in: float = 10e9
    measured: bool = False

    def rate(self, dtype: torch.dtype | str) -> float:
        """Return the FLOP/s of matrix products in `dtype`; those of float32 for a dtype without a figure."""
        rates = dict(self.flops)
        return rates.get(str(dtype).removeprefix("torch."), rates["float32"])

    def to_json(self) -> str:
        """Return the figures as a JSON object, to be read by `from_json`."""
        return json.dumps(dataclasses.asdict(self) | {"flops": dict(self.flops)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Hardware:
        """Return the figures that `to_json` wrote. Raises ValueError where `text` is anything else."""
        try:
            fields = json.loads(text)
            fields.setdefault("measured", True)  # what was kept before there was the field was measured
            hardware = cls(**fields | {"flops": tuple((str(k), float(v)) for k, v in fields["flops"].items())})
            figures = (
                *dict(hardware.flops).values(),
                hardware.memory_bandwidth,
                hardware.transcendental_rate,
                hardware.kernel_overhead,
                hardware.capacity,
                hardware.link_out,
                hardware.link_in,
            )
            whole = "float32" in dict(hardware.flops) and isinstance(hardware.measured, bool)
            if whole and all(0 < figure < float("inf") for figure in figures):
                return hardware
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the figures of a device: {error}") from error
        raise ValueError("not the figures of a device: each must be positive, float32 must be there")


def _built_in(
    name: str,
    device: str,
    tflops: tuple[float, ...],
    gb_per_s: float,
    exps: float,
    overhead: float,
    gib: int,
    link_gb_per_s: float,
) -> Hardware:
    flops = tuple((dtype, rate * 1e12) for dtype, rate in zip(_DTYPES, tflops, strict=True))
    link = link_gb_per_s * 1e9
    return Hardware(name, device, flops, gb_per_s * 1e9, exps, overhead, gib * 1024**3, link, link)


# Conservative: about 60 % of the dense peak that the maker gives, 80 % of the memory bandwidth and of the link (PCIe
# 5.0 or 4.0 at 16 lanes). exp over a large tensor is bound by that bandwidth on these GPUs: 8 bytes an element.
_BUILT_IN = (
    _built_in("H200", "cuda", (40, 590, 590, 20), 3800, 4.8e11, 5e-6, 139, 50),
    _built_in("H100", "cuda", (40, 590, 590, 20), 2700, 3.4e11, 5e-6, 79, 50),
    _built_in("A100", "cuda", (12, 190, 190, 6), 1250, 1.6e11, 5e-6, 39, 25),
    _built_in("RTX 4090", "cuda", (50, 100, 100, 0.8), 800, 1.0e11, 5e-6, 23, 25),
)
# A CPU without units for half precision emulates it, at a hundredth of the rate of float32 (0.7 against 56
# GFLOP/s on two cores of an EPYC).
_GENERIC = {
    "cuda": _built_in("generic CUDA device", "cuda", (10, 50, 50, 0.3), 400, 5e10, 5e-6, 16, 10),
    "cpu": _built_in("generic CPU", "cpu", (0.05, 0.01, 0.01, 0.025), 15, 5e8, 2e-6, 16, 7),
}


def built_in(name: str) -> Hardware:
    """Return the built-in figures of the device that `name` speaks of, as "NVIDIA H100 80GB HBM3" does.

    A name that is not known gives the generic CUDA device, "cpu" the generic CPU.
    """
    if name == "cpu":
        return _GENERIC["cpu"]
    words = _words(name)
    return next((known for known in _BUILT_IN if _holds(words, _words(known.name))), _GENERIC["cuda"])


def named(name: str) -> Hardware:
    """Return the built-in figures that a user asks for by name.

    Allowed are a name of the list ("H100"), a word of one where it says which ("4090"), a device's whole name that
    bears one ("NVIDIA H100 80GB HBM3"), and "cuda" and "cpu" for the generic ones. Raises OptionsError for all else.
    """
    generic = {known.name.lower(): known for known in _GENERIC.values()} | _GENERIC
    if (key := name.strip().lower()) in generic:
        return generic[key]
    words = _words(name)
    found = [known for known in _BUILT_IN if _holds(words, _words(known.name))]
    found = found or [known for known in _BUILT_IN if words and _holds(_words(known.name), words)]
    if len(found) == 1:
        return found[0]
    names = [known.name for known in _BUILT_IN]
    near = difflib.get_close_matches(key, [known.lower() for known in names], n=1)
    meant = next((f" (did you mean {known!r}?)" for known in names if [known.lower()] == near), "")
    raise OptionsError(
        f"no figures are built in for hardware {name!r}{meant}; allowed: {', '.join(map(repr, names))}, "
        '"cuda" and "cpu" for a generic one, or a memgraph.hardware.Hardware'
    )


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", name.lower()))


def _holds(words: tuple[str, ...], some: tuple[str, ...]) -> bool:
    """Whether `some` stand in `words`, one behind the other."""
    return any(words[n : n + len(some)] == some for n in range(len(words) - len(some) + 1))


def load(device: Device) -> Hardware:
    """Return the figures of `device`: those kept by `save` for it and this torch, else the built-in ones.

    Measures nothing, and needs no device: without one, "cuda" gives the generic CUDA device. Where the device
    is here, the built-in figures bear its name and capacity. Raises ValueError for a kind without figures.
    """
    device = _known_kind(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        return _GENERIC["cuda"]
    name = device_name(device)
    try:
        return Hardware.from_json(_file(name).read_text())
    except (OSError, ValueError):  # none kept, or not readable: the cache is never a reason to fail
        figures = built_in(name if device.type == "cuda" else "cpu")
        return dataclasses.replace(figures, name=name, capacity=_capacity(device))


def save(hardware: Hardware) -> Path:
    """Keep `hardware` in the cache folder for `load`, and return its file. Raises OSError where it cannot."""
    return keep(_file(hardware.name), hardware.to_json())


def calibrate(device: Device) -> Hardware:
    """Measure the figures of `device`, in a few seconds. Other work on it meanwhile lowers them.

    Raises ValueError for a device that is neither CUDA nor the CPU, and what torch raises where it is
    missing.
    """
    device = _known_kind(device)
    cuda = device.type == "cuda"

    # Larger than any cache on the way to memory.
    source = torch.zeros((1 << 30 if cuda else 1 << 28) // 4, device=device)
    target = torch.empty_like(source)
    copy = _seconds(lambda: target.copy_(source), device)
    exp = _seconds(lambda: torch.exp(source, out=target), device)
    tiny = torch.zeros(1, device=device)
    link_out, link_in = _link(source, target, device)
    return Hardware(
        name=device_name(device),
        device=device.type,
        flops=tuple((name, _matmul_rate(getattr(torch, name), device)) for name in _DTYPES),
        memory_bandwidth=2 * source.nbytes / copy,
        transcendental_rate=source.numel() / exp,
        kernel_overhead=_seconds(lambda: tiny.add_(1), device),
        capacity=_capacity(device),
        link_out=link_out,
        link_in=link_in,
        measured=True,
    )


def device_name(device: Device) -> str:
    """Return the name that figures are kept under: the device's own, with torch's threads for a CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = "CPU"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:  # not Linux
        pass
    return f"{model} ({torch.get_num_threads()} threads)"


def _seconds(fn: Callable[[], object], device: torch.device, sample: float = 0.02, samples: int = 5) -> float:
    """The median time of one call of `fn`, over samples of enough calls to last `sample` seconds each."""

    def timed(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / calls

    timed(1)  # what only the first call costs
    calls = max(1, round(sample / timed(3)))
    return statistics.median(timed(calls) for _ in range(samples))


def _link(source: torch.Tensor, target: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """Bytes/s to the host and back, by the runtime's own copies."""
    from memgraph.runtime.host import HostPool
    from memgraph.runtime.streams import exact
    from memgraph.runtime.value import Settings

    pool = HostPool(exact(device))
    pool.reserve(source.nbytes)
    held: list[Value] = []

    def out() -> None:
        held.clear()
        transfer = pool.offload("calibrate", source, Settings())
        transfer.finish()
        held.append(transfer.value)

    try:
        seconds_out = _seconds(out, device)
        seconds_in = _seconds(lambda: pool.reload(held[0], target).finish(), device)
    finally:
        held.clear()
        pool.release(source.nbytes)
    return source.nbytes / seconds_out, source.nbytes / seconds_in


def _matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of square products, grown until one outweighs its launch or is as large as they get."""
    largest = 8192 if device.type == "cuda" else 1024
    size = 128
    while True:
        left, right, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
        seconds = _seconds(functools.partial(torch.mm, left, right, out=out), device)
        if size == largest or seconds > 0.02:
            return 2 * size**3 / seconds
        size *= 2


def _capacity(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:  # a container may have less than the machine
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def _file(name: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name} torch {torch.__version__}").strip("-")
    return cache_folder() / f"hardware-{slug}.json"


def _known_kind(device: Device) -> torch.device:
    device = torch.device(device)
    if device.type not in _GENERIC:
        raise ValueError(f"there are no figures for {device}; allowed: {', '.join(_GENERIC)}")
    return device
