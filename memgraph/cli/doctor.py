"""The checks of `memgraph doctor`."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

OLDEST, NEWEST = (2, 11), (2, 15)  # torch that memgraph is tested with


@dataclasses.dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    """What is checked."""

    text: str
    """What was found."""

    ok: bool = True
    """Whether it is as it should be."""

    needed: bool = False
    """Whether memgraph cannot work unless it is ok."""


def checks(scratch: str | os.PathLike[str] | None = None) -> Iterator[Check]:
    """All checks, and those of a scratch folder where one is given. No check compiles or measures."""
    yield Check("python", platform.python_version(), sys.version_info >= (3, 10), needed=True)
    yield from _packages()
    yield _entry_point()
    yield from _devices()
    if scratch is not None:
        yield _scratch(os.fspath(scratch))
    yield _compiler()
    yield from _caches()


def _packages() -> Iterator[Check]:
    version = _version("torch")
    pair = tuple(int(part) for part in re.findall(r"\d+", version or "0.0")[:2])
    supported = f"tested with {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    yield Check("torch", f"{version} ({supported})", pair >= OLDEST, needed=True)
    if pair > NEWEST:
        yield Check("torch is newer", "than what memgraph was tested with: keep the option verify on", False)
    for name, why in (("transformers", "for the demo"), ("triton", "to compile for a GPU")):
        found = _version(name)
        yield Check(name, found or f"not installed ({why})", found is not None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _entry_point() -> Check:
    found = [e.value for e in metadata.entry_points(group="torch_dynamo_backends") if e.name == "memgraph"]
    missing = 'not registered, so backend="memgraph" is not found: pip install -e .'
    return Check("backend", found[0] if found else missing, bool(found), needed=True)


def _devices() -> Iterator[Check]:
    import torch

    from memgraph.base.sizes import format_size
    from memgraph.machine import hardware

    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    for device in ("cpu", *names):
        figures = hardware.load(device)
        origin = "measured figures" if figures.measured else "built-in figures (`memgraph calibrate` measures)"
        yield Check(device, f"{figures.name}, {format_size(figures.capacity)}; {origin}")
    if not names:
        built = "a torch with CUDA, but no GPU" if torch.backends.cuda.is_built() else "a torch without CUDA"
        yield Check("cuda", built, False)
        return
    yield _allocator()


def _allocator() -> Check:
    """Whether torch's allocator on CUDA wastes little of what it has from the device."""
    from memgraph.machine import caching_allocator

    if not caching_allocator.leaves_uncut("cuda"):
        return Check("allocator", "its segments expand")
    return Check(
        "allocator",
        "its segments do not expand: it reserves more than it gives, and a tensor above 1 MiB may count as up to 1 MiB "
        f"more; {caching_allocator.EXPAND} (`memgraph plan --exact` shows how much it reserves)",
        False,
    )


def _scratch(folder: str) -> Check:
    """How values get to a scratch folder and back, from the GPU where there is one."""
    import torch

    from memgraph.backend.destinations import way
    from memgraph.backend.options import ScratchOptions
    from memgraph.base.errors import OffloadError
    from memgraph.machine import disk

    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("scratch folder", f"{folder} cannot be written", False)
    rates = disk.load(folder)
    origin = "measured" if rates.measured else "built in; `memgraph calibrate --scratch` measures"
    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        told = way(ScratchOptions(path=folder), False, device)[1]
        return Check("scratch folder", f"{told or f'{folder}: {disk.speed(rates.rates(False))}'}; {origin}")
    except OffloadError as problem:
        return Check("scratch folder", str(problem), False)


def _compiler() -> Check:
    from memgraph.base.compiler import CompilerError, compiler

    # Even for a GPU, Inductor compiles a launcher for each kernel.
    try:
        return Check("C++ compiler", compiler(), needed=True)
    except CompilerError as problem:
        return Check("C++ compiler", str(problem), False, needed=True)


def _caches() -> Iterator[Check]:
    from memgraph.base import compat
    from memgraph.base.folder import cache_folder

    folders = (("plans and figures", cache_folder), ("Inductor's cache", compat.inductor_cache_folder))
    for name, folder in folders:
        try:
            yield Check(name, f"{folder()} ({_size(Path(folder()))})")
        except OSError as problem:  # memgraph then works without
            yield Check(name, str(problem), False)


def _size(folder: Path) -> str:
    from memgraph.base.sizes import format_size

    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # another process has just removed it
                continue
    return format_size(total)
