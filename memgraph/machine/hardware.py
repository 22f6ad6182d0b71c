"""What a device can do: rates, bandwidths and capacity, measured here or built in by name.

Planning reads these figures and never measures: calibration.py does that when a user asks for it
(`memgraph calibrate`), `save` keeps its result, and `load` finds it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from memgraph.base.errors import OptionsError
from memgraph.base.folder import cache_folder, write_atomically
from memgraph.machine.memory import physical_memory

Device: TypeAlias = torch.device | str

DTYPES = ("float32", "bfloat16", "float16", "float64")
Attention: TypeAlias = Literal["causal", "masked", "whole"]
"""Of each query to the keys up to its own; with a mask in memory, which says to which; to all keys."""
_BY_DTYPE = ("flops", "attention", "masked_attention", "whole_attention")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The figures of one device."""

    name: str
    """The device's own name."""

    device: str
    """Its kind, "cuda" or "cpu"."""

    flops: tuple[tuple[str, float], ...]
    """FLOP/s of a large matrix product, by dtype name ("float32", "bfloat16", ...)."""

    memory_bandwidth: float
    """Bytes/s of a large copy; bytes read and bytes written both count."""

    transcendental_rate: float
    """Elements/s of exp over a large float32 tensor; tanh and erf are taken to be alike."""

    kernel_overhead: float
    """Seconds that a kernel costs however little it does."""

    capacity: int
    """Bytes of memory."""

    link_out: float = 10e9
    """Bytes/s from the device to the runtime's host pool; on the CPU, of a copy in memory. The default stands for
    figures that were kept before links were measured."""

    link_in: float = 10e9
    """Bytes/s from the host pool back."""

    measured: bool = False
    """Whether `calibrate` measured them on the device itself."""

    attention: tuple[tuple[str, float], ...] = ()
    """FLOP/s of fused causal attention, forward and backward, by dtype name; those of products for a dtype without."""

    masked_attention: tuple[tuple[str, float], ...] = ()
    """The same of attention that is given a mask; those of causal attention for a dtype without."""

    whole_attention: tuple[tuple[str, float], ...] = ()
    """The same of attention of each query to all keys, without a mask."""

    truth_time: float = 0.0
    """Seconds that an entry of dtype bool costs, besides its byte, where a kernel that Inductor makes stores it and
    another loads it. A vector of them is put together entry by entry on a CPU. Built in for a CPU alone."""

    random_time: float = 0.0
    """Seconds that a random number costs in a kernel that Inductor makes. Built in for a CPU alone."""

    put_time: float = 0.0
    """Seconds that a number costs, besides its bytes, where a kernel that Inductor makes adds it to an entry of a table
    that a place decides: one by one on a CPU, and threads wait for one another. Built in for a CPU alone."""

    def rate(self, dtype: torch.dtype | str) -> float:
        """Return the FLOP/s of matrix products in `dtype`; those of float32 for a dtype without a figure."""
        rates = dict(self.flops)
        return rates.get(str(dtype).removeprefix("torch."), rates["float32"])

    def attention_rate(self, dtype: torch.dtype | str, kind: Attention = "causal") -> float:
        """Return the FLOP/s of attention in `dtype`, of the pairs of a query and a key that it looks at."""
        name = str(dtype).removeprefix("torch.")
        own = {"causal": self.attention, "masked": self.masked_attention, "whole": self.whole_attention}[kind]
        return (dict(self.attention) | dict(own)).get(name, self.rate(dtype))

    def to_json(self) -> str:
        """Return the figures as a JSON object, to be read by `from_json`."""
        by_dtype = {name: dict(getattr(self, name)) for name in _BY_DTYPE}
        return json.dumps(dataclasses.asdict(self) | by_dtype, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Hardware:
        """Return the figures that `to_json` wrote. Raises ValueError where `text` is anything else."""
        try:
            fields = json.loads(text)
            fields.setdefault("measured", True)  # what was kept before there was the field was measured
            fields = dict.fromkeys(_BY_DTYPE[1:], {}) | fields
            by_dtype = {name: tuple((str(k), float(v)) for k, v in fields[name].items()) for name in _BY_DTYPE}
            hardware = cls(**fields | by_dtype)
            figures = (
                *(rate for name in _BY_DTYPE for _, rate in getattr(hardware, name)),
                hardware.memory_bandwidth,
                hardware.transcendental_rate,
                hardware.kernel_overhead,
                hardware.capacity,
                hardware.link_out,
                hardware.link_in,
            )
            entries = hardware.truth_time, hardware.random_time, hardware.put_time
            whole = "float32" in dict(hardware.flops) and isinstance(hardware.measured, bool)
            if whole and all(0 < figure < float("inf") for figure in figures) and 0 <= min(entries) <= max(entries) < 1:
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
    attention: tuple[float, float] | None = None,
) -> Hardware:
    """attention: TFLOP/s in half types of causal attention, and of attention with a mask, where that is known."""
    flops = tuple((dtype, rate * 1e12) for dtype, rate in zip(DTYPES, tflops, strict=True))
    causal, masked = map(_in_half_types, attention) if attention else ((), ())
    link = link_gb_per_s * 1e9
    figures = Hardware(name, device, flops, gb_per_s * 1e9, exps, overhead, gib * 1024**3, link, link)
    return dataclasses.replace(figures, attention=causal, masked_attention=masked)


def _in_half_types(tflops: float) -> tuple[tuple[str, float], ...]:
    return ("bfloat16", tflops * 1e12), ("float16", tflops * 1e12)


# Conservative: about 60 % of the dense peak that the maker gives, 80 % of the memory bandwidth and of the link (PCIe
# 5.0 or 4.0 at 16 lanes). exp over a large tensor is bound by that bandwidth on these GPUs: 8 bytes an element.
# Attention was measured on an H100 (docs/decisions/0018): cuDNN's, 2 x 16 heads x 4,096 x 128 in bfloat16. An H200
# computes with the same chip; of other cards it is not known, and goes by products.
_HOPPER_ATTENTION = (467, 306)
_BUILT_IN = (
    _built_in("H200", "cuda", (40, 590, 590, 20), 3800, 4.8e11, 5e-6, 139, 50, _HOPPER_ATTENTION),
    _built_in("H100", "cuda", (40, 590, 590, 20), 2700, 3.4e11, 5e-6, 79, 50, _HOPPER_ATTENTION),
    _built_in("A100", "cuda", (12, 190, 190, 6), 1250, 1.6e11, 5e-6, 39, 25),
    _built_in("RTX 4090", "cuda", (50, 100, 100, 0.8), 800, 1.0e11, 5e-6, 23, 25),
)
# A CPU without units for half precision emulates it, at a hundredth of the rate of float32 (0.7 against 56
# GFLOP/s on two cores of an EPYC).
_GENERIC = {
    "cuda": _built_in("generic CUDA device", "cuda", (10, 50, 50, 0.3), 400, 5e10, 5e-6, 16, 10),
    "cpu": dataclasses.replace(
        _built_in("generic CPU", "cpu", (0.05, 0.01, 0.01, 0.025), 15, 5e8, 2e-6, 16, 7),
        truth_time=5e-9,
        random_time=5e-9,
        put_time=5e-9,
    ),
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
    bears one ("NVIDIA H100 80GB HBM3"), and "cuda" and "cpu" for the generic ones. Where the name tells the memory,
    that is the capacity: there are an A100 of 40 and one of 80 GB. Raises OptionsError for all else.
    """
    generic = {known.name.lower(): known for known in _GENERIC.values()} | _GENERIC
    if (key := name.strip().lower()) in generic:
        return generic[key]
    words = _words(name)
    found = [known for known in _BUILT_IN if _holds(words, _words(known.name))]
    found = found or [known for known in _BUILT_IN if words and _holds(_words(known.name), words)]
    if len(found) == 1:
        return _with_memory(found[0], name)
    names = [known.name for known in _BUILT_IN]
    near = difflib.get_close_matches(key, [known.lower() for known in names], n=1)
    meant = next((f" (did you mean {known!r}?)" for known in names if [known.lower()] == near), "")
    raise OptionsError(
        f"no figures are built in for hardware {name!r}{meant}; allowed: {', '.join(map(repr, names))}, "
        '"cuda" and "cpu" for a generic one, or a memgraph.hardware.Hardware'
    )


# GiB that a device keeps of its nominal memory for itself, at most: an H100 of 80 GB shows 79.1 GiB.
_KEPT = 2


def _with_memory(known: Hardware, name: str) -> Hardware:
    """The figures of a device whose name may tell its memory in GB, which makers count in GiB."""
    told = re.search(r"(\d+)\s*gi?b\b", name, re.IGNORECASE)
    if told is None or 0 <= int(told[1]) - known.capacity / 1024**3 <= _KEPT:
        return known
    return dataclasses.replace(known, capacity=(int(told[1]) - 1) * 1024**3)


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", name.lower()))


def _holds(words: tuple[str, ...], some: tuple[str, ...]) -> bool:
    """Whether `some` stand in `words`, in a row."""
    return any(words[n : n + len(some)] == some for n in range(len(words) - len(some) + 1))


def load(device: Device) -> Hardware:
    """Return the figures of `device`: those that `save` kept for it and this version of torch, else the built-in ones.

    Measures nothing, and needs no device: without one, "cuda" gives the generic CUDA device. Where the device
    is here, the built-in figures bear its name and capacity. Raises ValueError for a kind without figures.
    """
    device = known_kind(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        return _GENERIC["cuda"]
    name = device_name(device)
    try:
        return Hardware.from_json(_file(name).read_text())
    except (OSError, ValueError):  # none kept, or not readable: the cache is never a reason to fail
        figures = built_in(name if device.type == "cuda" else "cpu")
        return dataclasses.replace(figures, name=name, capacity=capacity_of(device))


def save(hardware: Hardware) -> Path:
    """Keep `hardware` in the cache folder for `load`, and return its file. Raises OSError where it cannot."""
    return write_atomically(_file(hardware.name), hardware.to_json())


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


def capacity_of(device: torch.device) -> int:
    """Return the bytes of memory of a CUDA device; for the CPU, of the machine or its container (cgroup v2)."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return physical_memory()


def _file(name: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name} torch {torch.__version__}").strip("-")
    return cache_folder() / f"hardware-{slug}.json"


def known_kind(device: Device) -> torch.device:
    """Return `device` as a torch.device. Raises ValueError for a kind other than CUDA and the CPU."""
    device = torch.device(device)
    if device.type not in _GENERIC:
        raise ValueError(f"there are no figures for {device}; allowed: {', '.join(_GENERIC)}")
    return device
