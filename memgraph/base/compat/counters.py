"""A device's allocator, asked for a few of its counters alone."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch

from memgraph.base.compiler import CompilerError, compiler, run
from memgraph.base.folder import cache_folder

SOURCE = Path(__file__).parents[1] / "native" / "counters.cpp"
CUDA = 1  # of c10's DeviceType

Numbers: TypeAlias = tuple[int, int, int]
"""Bytes: allocated, the same at its highest since the statistics were last reset, and what was asked for of these."""


@functools.cache
def allocator_counters() -> Callable[[int], Numbers | None] | None:
    """What reads the counters of a CUDA device, by its number, in a microsecond; it returns None where it cannot.

    None where no C++ compiler works here: torch's dictionary of all counters says the same, 20 to 40 microseconds
    later. Built once for each torch, in some seconds, and found again in the cache folder.
    """
    try:
        library = ctypes.CDLL(str(_built()))
    except (CompilerError, OSError):
        return None
    ask, found = library.memgraph_counters, (ctypes.c_int64 * 3)
    ask.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)

    def read(device: int) -> Numbers | None:
        into = found()
        return None if ask(CUDA, device, into) else (into[0], into[1], into[2])

    return read


def _built() -> Path:
    """The library, built where it is not there yet. Raises CompilerError, OSError."""
    from torch.utils.cpp_extension import include_paths, library_paths  # it looks for CUDA when it is imported

    text = SOURCE.read_bytes()
    key = hashlib.sha256(text + f"{torch.__version__} {torch.version.git_version}".encode()).hexdigest()[:16]
    made = cache_folder() / "native" / f"counters-{key}.so"
    if made.exists():
        return made
    made.parent.mkdir(mode=0o700, exist_ok=True)
    searched = [f"-I{place}" for place in include_paths()] + [f"-L{place}" for place in library_paths()]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".build-") as folder:
        built = Path(folder) / made.name
        command = [compiler(), "-O2", "-std=c++20", "-fPIC", "-shared", "-w", abi, *searched, str(SOURCE)]
        run([*command, "-o", str(built), "-lc10"], "the reader of the allocator's counters cannot be built")
        built.replace(made)  # at once: another process may look for it
    return made
