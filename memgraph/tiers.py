"""Which tiers values may be offloaded to: the options, the machine's room and its links, as the planner takes them."""

from __future__ import annotations

import json
import shutil

import torch

from memgraph import compat, disk, runtime
from memgraph.errors import OffloadError
from memgraph.hardware import Hardware
from memgraph.options import Options
from memgraph.planner.offload import Tiers
from memgraph.planner.transfers import Tier
from memgraph.runtime.slots import PAGE

# What `True` leaves of the free host memory, and no limit of the free disk: others need some too.
LEFT = 0.1


def tiers(options: Options, hardware: Hardware, here: bool = True) -> Tiers:
    """The tiers of one compilation, fastest first.

    here: whether the step runs on this machine; else only given limits bound the tiers.
    Raises OffloadError where the scratch folder cannot be used.
    """
    wanted = options.offload
    if wanted is None:
        return Tiers()
    found = []
    if wanted.host:
        room = None if wanted.host is True else wanted.host
        if room is None and here:
            room = _rounded(compat.free_memory())
        # The CPU's own memory is where the values are already: only a rule sends them there.
        only_rules = torch.device(hardware.device).type == "cpu"
        found.append(Tier("host", hardware.link_out, hardware.link_in, room, only_rules, PAGE))
    if wanted.nvme is not None:
        rates = disk.load(wanted.nvme.path)
        room = wanted.nvme.limit
        if here:
            free = _rounded(_free_disk(wanted.nvme.path))
            room = free if room is None else room  # more than is free is refused when it is reserved
        extra = runtime.room(1, "nvme", hardware.device) - PAGE
        found.append(Tier("nvme", rates.write, rates.read, room, page=PAGE, extra=extra))
    return Tiers(tuple(found), wanted.min_bytes)


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
