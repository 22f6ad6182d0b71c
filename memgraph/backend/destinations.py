"""The tiers that values may be offloaded to: made of the options, the machine's free room and its bandwidths."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from memgraph import runtime
from memgraph.backend.options import OffloadOptions, Options, ScratchOptions
from memgraph.base.errors import OffloadError
from memgraph.base.sizes import format_size
from memgraph.machine import disk, memory
from memgraph.machine.hardware import Hardware
from memgraph.planner.decisions import Plan
from memgraph.planner.leaving import Tiers
from memgraph.planner.queues import Tier
from memgraph.runtime.gpudirect import ON_CPU
from memgraph.runtime.slots import PAGE
from memgraph.runtime.space import Space, describe

# The share of the free host memory that the option `True` leaves free, for other processes.
LEFT = 0.1
# What other graphs of this process leave of a limit is rounded down to this share of the limit: their plans may differ
# a little from run to run, and that should not change the cache key of this graph.
STEP = 1 / 64


def tiers(options: Options, hardware: Hardware, here: bool = True, device: torch.device | str | None = None) -> Tiers:
    """The tiers of one compilation, fastest first.

    here: whether the step runs on this machine; if not, only the limits of the options bound the tiers.  device: where
    the values are; default: a device of the kind that `hardware` describes.
    Raises OffloadError where the scratch folder cannot be used, or cannot be used as the options ask.
    """
    wanted = options.offload
    if wanted is None:
        return Tiers()
    device = torch.device(device or hardware.device)
    found: list[Tier] = []
    notes: tuple[str, ...] = ()
    if wanted.host:
        found.append(_host(wanted, hardware, device, here))
    if wanted.nvme is not None:
        if here:
            _check_folder(wanted.nvme.path)
        gpudirect, note = way(wanted.nvme, wanted.verify, device, here)
        notes = (note,) if note else ()
        found.append(_nvme(wanted.nvme, hardware, device, here, gpudirect))
    return Tiers(tuple(found), wanted.min_bytes, notes)


def for_launches(found: Tiers, launches: int) -> Tiers:
    """The tiers of a graph that is launched several times before its first backward: all launches share the room."""
    if launches == 1:
        return found
    parts = (
        dataclasses.replace(tier, capacity=tier.capacity // launches, why=f"{tier.why}; {launches} launches share it")
        if tier.capacity is not None
        else tier
        for tier in found.tiers
    )
    return dataclasses.replace(found, tiers=tuple(parts))


def _host(wanted: OffloadOptions, hardware: Hardware, device: torch.device, here: bool) -> Tier:
    taken = runtime.taken("host", device) if here else runtime.Taken()
    capacity = limit = None
    why = ""
    if wanted.host is not True:
        limit = wanted.host
        capacity, why = _left(limit, taken)
    elif here:
        ranks = ranks_here()
        capacity = _rounded(int(memory.free_memory() * (1 - LEFT)) // ranks + taken.spare)
        limit = capacity + taken.reserved
        why = f"memory that the machine has free{_shared(ranks)}{_besides(taken)}"
    # Values of a CPU step are in host memory already: only a rule copies them there.
    only_rules = torch.device(hardware.device).type == "cpu"
    drag = 1.0 if only_rules else 0.0  # the thread that computes makes the copy itself (runtime/streams.py)
    rates = hardware.link_out, hardware.link_in
    return Tier("host", *rates, capacity, only_rules, PAGE, limit=limit, drag=drag, why=why)


def _nvme(wanted: ScratchOptions, hardware: Hardware, device: torch.device, here: bool, gpudirect: bool) -> Tier:
    folder, limit = wanted.path, wanted.limit
    taken = runtime.taken("nvme", device, folder) if here else runtime.Taken()
    capacity, why = (None, "") if limit is None else _left(limit, taken)
    if here:
        disk_room, text = _disk_room(folder, wanted.margin, taken)
        if capacity is None or disk_room < capacity:
            capacity, why = disk_room, text
    extra = runtime.room(1, "nvme", hardware.device) - PAGE
    figures = disk.load(folder)
    drag, each = figures.taken if torch.device(hardware.device).type == "cpu" else (0.0, 0.0)
    own: dict[str, Any] = {
        "page": PAGE,
        "extra": extra,
        "gpudirect": gpudirect,
        "limit": limit,
        "drag": drag,
        "each": each,
        "why": why,
    }
    return Tier("nvme", *figures.rates(gpudirect), capacity, **own)


def _left(limit: int, taken: runtime.Taken) -> tuple[int, str]:
    """The bytes that reservations in this process leave of a limit, and the reason as text."""
    text = f"its limit is {format_size(limit)}"
    if not taken.reserved:
        return limit, text
    step = max(1, int(limit * STEP))
    return max(0, limit - taken.reserved) // step * step, text + _besides(taken)


def _disk_room(folder: str, margin: float | None, taken: runtime.Taken) -> tuple[int, str]:
    """The bytes of the disk that one process may use beside what it has reserved, and the reason as text.

    margin: as in `ScratchOptions`.  Raises OffloadError where the file system cannot be asked.
    """
    try:
        space = Space.of(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    kept, ranks = space.margin(margin), ranks_here()
    room = max(0, space.free - kept) // ranks
    text = f"the file system of {folder} has {describe(space.free, kept)}{_shared(ranks)}{_besides(taken)}"
    return _rounded(room + taken.spare), text


def _shared(ranks: int) -> str:
    return f", shared by {ranks} processes" if ranks > 1 else ""


def _besides(taken: runtime.Taken) -> str:
    return f"; reserved in this process: {taken}" if taken.reserved else ""


def ranks_here() -> int:
    """How many ranks of this job share this machine, its memory and its disk.

    The launcher says it (LOCAL_WORLD_SIZE). Default: all ranks, but at most as many as the machine has GPUs.
    """
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    if said.isdecimal() and int(said):
        return int(said)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    world = distributed.get_world_size()
    return min(world, torch.cuda.device_count() or world)


def way(wanted: ScratchOptions, checksums: bool, device: torch.device | str, here: bool = True) -> tuple[bool, str]:
    """Whether values go to the scratch file by GPUDirect; and a note with the reason (none on the CPU).

    checksums: whether values are compared when they come back, which needs their bytes in host memory.

    Raises OffloadError where the options demand GPUDirect and it cannot be used.
    """
    folder, figures = wanted.path, disk.load(wanted.path)
    against = _against_gpudirect(wanted, checksums, figures, device, here)
    if against and wanted.gpudirect is True:
        raise OffloadError(f"GPUDirect was asked for and cannot be used: {against}", tier="nvme", path=folder)
    staged = disk.speed(figures.rates(False))
    if against:
        text = f"{folder}: staged in page-locked memory ({staged}), not by GPUDirect: {against}"
        return False, "" if torch.device(device).type == "cpu" else text
    direct = disk.speed(figures.rates(True)) if figures.knows_gpudirect else "not measured"
    return True, f"{folder}: by GPUDirect ({direct}), not staged in page-locked memory ({staged})"


def _against_gpudirect(
    wanted: ScratchOptions, checksums: bool, figures: disk.Disk, device: torch.device | str, here: bool
) -> str:
    """The reason against GPUDirect; empty where it is used."""
    if not wanted.gpudirect:
        return "switched off by the options"
    if checksums:
        return "checksums need the bytes in the memory of the host"
    if wanted.gpudirect == "auto" and figures.against_gpudirect:
        return figures.against_gpudirect
    if here:
        return runtime.gpudirect_refusal(wanted.path, device)
    return ON_CPU if torch.device(device).type == "cpu" else ""


def settings(options: Options, found: Tiers, graph: Callable[[], str] = str) -> dict[str, str]:
    """By tier, the settings of copies to it, as JSON (`memgraph.runtime.Settings`).

    graph: makes a name of the graph, where one is needed: that takes a while.
    """
    if options.offload is None:
        return {}
    common: dict[str, object] = {"verify": options.offload.verify}
    if options.offload.window:
        common |= {"window": options.offload.window, "graph": graph()}
    text = {}
    for tier in found.tiers:
        own: dict[str, object] = {"cap": tier.limit}
        if tier.name == "nvme":
            scratch = options.offload.nvme
            assert scratch is not None  # the options made this tier
            own = {"folder": scratch.path, "limit": tier.limit, "margin": scratch.margin}
            if tier.gpudirect:
                own["gpudirect"] = True
        text[tier.name] = json.dumps(common | own, sort_keys=True)
    return text


def tier_bytes(plans: Iterable[Plan], found: Tiers) -> dict[str, int]:
    """Bytes that one step of these plans keeps on each tier, by the tier's name; only tiers with transfers."""
    needed: dict[str, int] = {}
    for plan in plans:
        for transfer in plan.transfers:
            tier = found.named(transfer.tier)
            assert tier is not None  # plans send values to these tiers alone
            needed[tier.name] = needed.get(tier.name, 0) + tier.room(transfer.bytes)
    return needed


def reserve(
    needed: Mapping[str, int], options: Options, found: Tiers, device: torch.device | str, owner: str
) -> list[runtime.Reservation]:
    """Reserve room on tiers for one device, until the reservations are dropped.

    needed: as `tier_bytes` gives it.  owner: the name that messages about other reservations give to this one.
    Raises OffloadError where a tier has less room than it said; nothing stays reserved then.
    """
    told = settings(options, found)
    taken: list[runtime.Reservation] = []
    try:
        for name, size in needed.items():
            sizes = {"host_bytes": size} if name == "host" else {"nvme_bytes": size}
            taken.append(runtime.prepare(device, told[name], **sizes, owner=owner))
    except BaseException:
        for reservation in taken:
            reservation.close()
        raise
    return taken


def _check_folder(folder: str) -> None:
    """Raise OffloadError unless a scratch file can be made in `folder`, even if no value will ever go there."""
    try:
        mode = os.stat(folder).st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no file can be written in it")
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: str, error: OSError) -> OffloadError:
    return OffloadError(f"the scratch folder cannot be used: {error.strerror}", tier="nvme", path=folder)


def _rounded(room: int) -> int:
    """Rounded down by less than an eighth, so that the cache keys stay when another process allocates a little."""
    step = 1 << max(0, room.bit_length() - 4)
    return room // step * step


def holding(compiled: Any, kept: list[Any]) -> Any:
    """The same callable, which keeps some objects alive for as long as it lives itself."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        return compiled(*args)

    holder: Any = call
    holder._kept = kept
    if getattr(compiled, "_boxed_call", False):
        holder._boxed_call = True
    return holder
