"""What the choice of a kernel depends on, apart from its arguments."""

from __future__ import annotations

import functools
import hashlib
import os

import torch

from memgraph.machine import cuda_libraries


def fingerprint() -> str:
    """All facts of this process and machine that decide about kernels and their scratch, as text."""
    backend = torch.backends.mkldnn
    return "|".join(
        map(
            str,
            (
                torch.__version__,
                torch.get_num_threads(),
                torch.backends.cpu.get_cpu_capability(),
                _instructions(),
                os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")),
                backend.is_available() and backend.enabled,
                getattr(backend, "deterministic", None),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_float32_matmul_precision(),
                cuda_libraries.fingerprint(),
                *(_precision(part) for part in ("matmul", "conv", "rnn")),
            ),
        )
    )


def _precision(part: str) -> str:
    return str(getattr(getattr(torch.backends.mkldnn, part, None), "fp32_precision", ""))


@functools.lru_cache(maxsize=1)
def _instructions() -> str:
    """The instruction sets that the processor has, hashed."""
    try:
        with open("/proc/cpuinfo") as lines:
            flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        flags = ""
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
