"""Which tiers values may be offloaded to: the options, the machine's room and its links, as the planner takes them."""

from __future__ import annotations

import json
import shutil

import torch

from memgraph import compat, disk, runtime
from memgraph.errors import OffloadError
from memgraph.hardware import Hardware
from memgraph.options import OffloadOptions, Options
from memgraph.planner.offload import Tiers
from memgraph.planner.transfers import Tier
from memgraph.runtime.gpudirect import ON_CPU
from memgraph.runtime.slots import PAGE

# What `True` leaves of the free host memory, and no limit of the free disk: others need some too.
LEFT = 0.1


def tiers(options: Options, hardware: Hardware, here: bool = True, device: torch.device | str | None = None) -> Tiers:
    """The tiers of one compilation, fastest first.

    here: whether the step runs on this machine; else only given limits bound the tiers.  device: of the values, by
    default one of the kind that `hardware` speaks of.
    Raises OffloadError where the scratch folder cannot be used, or not in the way that was asked for.
    """
    wanted = options.offload
    if wanted is None:
        return Tiers()
    found, notes = [], ()
    if wanted.host:
        room = None if wanted.host is True else wanted.host
        if room is None and here:
            room = _rounded(compat.free_memory())
        # The CPU's own memory is where the values are already: only a rule sends them there.
        only_rules = torch.device(hardware.device).type == "cpu"
        found.append(Tier("host", hardware.link_out, hardware.link_in, room, only_rules, PAGE))
    if wanted.nvme is not None:
        gpudirect, note = way(wanted, device or hardware.device, here)
        notes = (note,) * bool(note)
        room = wanted.nvme.limit
        if here:
            free = _rounded(_free_disk(wanted.nvme.path))
            room = free if room is None else room  # more than is free is refused when it is reserved
        extra = runtime.room(1, "nvme", hardware.device) - PAGE
        rates = disk.load(wanted.nvme.path).rates(gpudirect)
        found.append(Tier("nvme", *rates, room, page=PAGE, extra=extra, gpudirect=gpudirect))
    return Tiers(tuple(found), wanted.min_bytes, notes)


def way(wanted: OffloadOptions, device: torch.device | str, here: bool = True) -> tuple[bool, str]:
    """Whether values go to the scratch file by GPUDirect; and which way they go and why, to read (not on the CPU).

    Raises OffloadError where GPUDirect was asked for and cannot be had.
    """
    folder, figures = wanted.nvme.path, disk.load(wanted.nvme.path)
    against = _against_gpudirect(wanted, figures, device, here)
    if against and wanted.nvme.gpudirect is True:
        raise OffloadError(f"GPUDirect was asked for and cannot be used: {against}", tier="nvme", path=folder)
    staged = disk.speed(figures.rates(False))
    if against:
        text = f"{folder}: staged in page-locked memory ({staged}), not by GPUDirect: {against}"
        return False, "" if torch.device(device).type == "cpu" else text
    direct = disk.speed(figures.rates(True)) if figures.knows_gpudirect else "not measured"
    return True, f"{folder}: by GPUDirect ({direct}), not staged in page-locked memory ({staged})"


def _against_gpudirect(wanted: OffloadOptions, figures: disk.Disk, device: torch.device | str, here: bool) -> str:
    """Why values do not go by GPUDirect; empty where they do."""
    if not wanted.nvme.gpudirect:
        return "switched off by the options"
    if wanted.verify:
        return "checksums need the bytes in the memory of the host"
    if wanted.nvme.gpudirect == "auto" and figures.against_gpudirect:
        return figures.against_gpudirect
    if here:
        return runtime.gpudirect_refusal(wanted.nvme.path, device)
    return ON_CPU if torch.device(device).type == "cpu" else ""


def settings(options: Options, found: Tiers, graph: str = "") -> dict[str, str]:
    """What the copies of each tier are told, as JSON (memgraph.runtime.Settings).  graph: tells graphs apart."""
    if options.offload is None:
        return {}
    common = {"verify": options.offload.verify}
    if options.offload.window:
        common |= {"window": options.offload.window, "graph": graph}
    text = {}
    for tier in found.tiers:
        own = {"cap": tier.capacity} if tier.name == "host" else {"folder": options.offload.nvme.path}
        if tier.name == "nvme":
            own["limit"] = options.offload.nvme.limit
            if tier.gpudirect:
                own["gpudirect"] = True
        text[tier.name] = json.dumps(common | own, sort_keys=True)
    return text


def _free_disk(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise OffloadError(f"the scratch folder cannot be used: {error.strerror}", tier="nvme", path=folder) from error


def _rounded(free: int) -> int:
    """Rounded down to an eighth of its size, so that caches do not answer anew whenever a neighbour breathes."""
    usable = int(free * (1 - LEFT))
    step = 1 << max(0, usable.bit_length() - 4)
    return usable // step * step
