"""The tiers of this process: a host pool for each device, a scratch file for each folder and device."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime import nvme
from memgraph.runtime.gpudirect import Opener
from memgraph.runtime.host import HostPool, Memory
from memgraph.runtime.nvme import NvmeTier
from memgraph.runtime.reservations import Tidier, listed
from memgraph.runtime.settings import Settings
from memgraph.runtime.slots import pages
from memgraph.runtime.space import Calls
from memgraph.runtime.streams import exact

Tier = HostPool | NvmeTier
_pools: dict[torch.device, HostPool] = {}
_files: dict[tuple[str, torch.device], NvmeTier] = {}
_lock = threading.Lock()
_tidier = Tidier()


@dataclass(frozen=True)
class Statistics:
    """What the tiers hold and have moved, in bytes."""

    host_live: int
    """Of values in host memory now."""

    host_peak: int
    """The most of them at once."""

    host_pool: int
    """Memory of the host pools."""

    nvme_live: int
    """Of values in scratch files now."""

    nvme_peak: int
    """The most of them at once."""

    nvme_file: int
    """Size of the scratch files."""

    written: int
    """To the disk since the process began."""

    read: int
    """From the disk since the process began."""

    direct: bool | None
    """Whether all scratch files bypass the page cache; None where there was no scratch file."""

    gpudirect: tuple[str, ...]
    """The folders whose scratch file is registered for GPUDirect."""

    notes: tuple[str, ...]
    """What a user should know, such as why a file is not registered."""


class Reservation:
    """Room in the tiers for one compiled graph. It ends with `close`, or soon after its last reference dies."""

    def __init__(self) -> None:
        self._held: list[tuple[Tier, int, weakref.finalize]] = []

    def hold(self, tier: Tier, number: int) -> None:
        """Become the owner of a tier's reservation."""
        finalizer = weakref.finalize(self, _leave, tier, number)
        finalizer.atexit = False
        self._held.append((tier, number, finalizer))

    def close(self) -> None:
        """Release the room, once. What no value and no other graph needs goes back to the system."""
        for tier, number, finalizer in self._held:
            if finalizer.detach() is not None:
                tier.release(number)


def _leave(tier: Tier, number: int) -> None:
    """End a reservation from a finalizer, which may run on any thread and inside of any lock."""
    tier.reservations.leave(number)
    _tidier.ask(tier)


def room(size: int, tier: str, device: torch.device | str) -> int:
    """Bytes to reserve in a tier for a value of `size` bytes (first element to last, gaps included)."""
    return nvme.room(size, torch.device(device)) if tier == "nvme" else pages(size)


def prepare(
    device: torch.device | str, options: str, host_bytes: int = 0, nvme_bytes: int = 0, owner: str = ""
) -> Reservation:
    """Reserve room for the values of one compiled graph on `device`, before its first step.

    `options` as in `offload_start`; the bytes are sums of `room`. Those of several graphs add up. `owner`: the graph's
    name, for messages about a full tier. Raises OffloadError where there is no room, or it lies beyond `cap` or
    `limit`; nothing stays reserved then.
    """
    settings, device = Settings.parse(options), exact(device)
    _tidier.start()
    reservation = Reservation()
    try:
        if host_bytes:
            pool = host_pool(device)
            reservation.hold(pool, pool.reserve(host_bytes, settings.cap, owner))
        if nvme_bytes:
            file = scratch_file(settings.folder, device)
            reservation.hold(file, file.reserve(nvme_bytes, settings.limit, settings.margin, owner))
            if settings.gpudirect and not settings.verify:
                file.register(settings.limit, settings.margin)
    except BaseException:
        reservation.close()
        raise
    return reservation


@dataclass(frozen=True)
class Taken:
    """The reservations of one tier in this process."""

    holders: tuple[tuple[str, int], ...] = ()
    """Each owner of reservations and its bytes, the largest first."""

    spare: int = 0
    """Bytes that the tier has from the system and that nobody has reserved."""

    @property
    def reserved(self) -> int:
        """Bytes of all reservations."""
        return sum(size for _, size in self.holders)

    def __str__(self) -> str:
        return listed(self.holders)


def taken(tier: str, device: torch.device | str, folder: str = "") -> Taken:
    """What compiled graphs have reserved in the tier of `device` (in `folder`). Allocates and opens nothing."""
    device = exact(device)
    with _lock:
        found = _pools.get(device) if tier == "host" else _files.get((os.path.realpath(folder), device))
    if found is None:
        return Taken()
    holders = found.reserved()
    return Taken(holders, max(0, found.slots.total - sum(size for _, size in holders)))


def statistics(device: torch.device | str | None = None) -> Statistics:
    """What the tiers of `device` (of all devices without one) hold now."""
    key = None if device is None else exact(device)
    with _lock:
        pools = [pool for where, pool in _pools.items() if key in (None, where)]
        files = [file for (_, where), file in _files.items() if key in (None, where)]
    tiers: list[Tier] = [*pools, *files]
    for tier in tiers:
        tier.settle()
    opened = [file.direct for file in files if file.direct is not None]
    return Statistics(
        host_live=sum(pool.slots.live for pool in pools),
        host_peak=sum(pool.slots.peak for pool in pools),
        host_pool=sum(pool.slots.total for pool in pools),
        nvme_live=sum(file.slots.live for file in files),
        nvme_peak=sum(file.slots.peak for file in files),
        nvme_file=sum(file.slots.total for file in files),
        written=sum(file.written for file in files),
        read=sum(file.read for file in files),
        direct=all(opened) if opened else None,
        gpudirect=tuple(file.folder for file in files if file.gpudirect is not None),
        notes=tuple(f"{file.folder}: {note}" for file in files for note in _notes(file)),
    )


def _notes(file: NvmeTier) -> tuple[str, ...]:
    refused = f"staged: GPUDirect was refused: {file.refusal}"
    return tuple(note for note, there in ((file.note, file.note), (refused, file.refusal)) if there)


def gpudirect_refusal(folder: str, device: torch.device | str) -> str:
    """Why GPUDirect does not reach the scratch file of `device` in `folder`, found by trying; "" where it does.

    The file grows by a page for it, whatever limits the values that a graph will offload.
    """
    file = scratch_file(folder, device)
    try:
        return "" if file.register() else file.refusal
    except OffloadError as error:  # no scratch file can be opened: who needs one gets the error
        return error.reason
    finally:
        file.trim()


def release() -> None:
    """Return room that no reservation and no value needs to the system."""
    with _lock:
        tiers: list[Tier] = [*_pools.values(), *_files.values()]
    for tier in tiers:
        tier.trim()


def host_pool(device: torch.device | str, memory: Memory | None = None) -> HostPool:
    """The host pool of `device`. With `memory`, a new pool with those system calls replaces it."""
    device = exact(device)
    with _lock:
        if memory is not None or device not in _pools:
            _pools[device] = HostPool(device, memory)
        return _pools[device]


def scratch_file(
    folder: str, device: torch.device | str, calls: Calls | None = None, gds: Opener | None = None
) -> NvmeTier:
    """The scratch file of `device` in `folder`. With `calls` or `gds`, a new file with those replaces it."""
    if not folder:
        raise OffloadError("no scratch folder was given", tier="nvme")
    key = os.path.realpath(folder), exact(device)
    with _lock:
        if calls is not None or gds is not None or key not in _files:
            _files[key] = NvmeTier(*key, calls=calls, gds=gds)
        return _files[key]


def _in_a_child() -> None:
    """Start anew in a forked child: the parent's threads do not exist there, and its slots are not the child's to give.

    The child's copies of the descriptors are closed: they would keep the parent's files on the disk.
    """
    global _lock, _tidier
    for file in _files.values():
        file.disown()
    _pools.clear()
    _files.clear()
    _lock, _tidier = threading.Lock(), Tidier()  # another thread may have held them


os.register_at_fork(after_in_child=_in_a_child)
