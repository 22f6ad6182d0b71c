"""The machine's own memory, what of it a container leaves to this process, and a card's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_MACHINE = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def physical_memory() -> int:
    """Bytes of memory of the machine, or of its container (control groups, version 2), where that may have less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(most for _, most in _limits())])


def free_memory() -> int:
    """Bytes of memory that the machine could still give out (Linux: MemAvailable), and its container allows.

    What the container's files take in the page cache counts as free: the kernel gives it up before it kills anybody.
    """
    return min([_free_of_machine(), *(most - _taken(group) for group, most in _limits())])


def free_on(device: torch.device) -> int:
    """Bytes that a device could still give out: the machine's, or a card's with what torch's allocator keeps unused.

    For a card that is not here, what is planned for it runs on the machine.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return free_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _free_of_machine() -> int:
    try:
        with open(_MACHINE) as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _limits() -> Iterator[tuple[Path, int]]:
    """The control groups of this process that limit its memory, and their limits in bytes."""
    for group in _groups():
        try:
            yield group, int((group / "memory.max").read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue


def _groups() -> Iterator[Path]:
    """The folders of this process's control group and of those that it lies in. Elsewhere than on Linux there are none.

    A container with a name space of its own sees its own group as the outermost.
    """
    try:
        lines = _OWN_GROUP.read_text().splitlines()
    except OSError:
        return
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return
    folder = _GROUPS / path
    yield folder
    while folder != _GROUPS and _GROUPS in folder.parents:
        folder = folder.parent
        yield folder


def _taken(group: Path) -> int:
    """Bytes that the processes of a group hold and cannot be made to give up."""
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int((group / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0
