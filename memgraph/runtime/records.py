"""Values on their way: from a tensor to a held value and back, and the loads that begin before they are asked for."""

from __future__ import annotations

import os
import threading
import weakref

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime import sanitizer
from memgraph.runtime.layout import Layout, bytes_of
from memgraph.runtime.pending_copy import PendingCopy
from memgraph.runtime.process import Tier, host_pool, scratch_file
from memgraph.runtime.settings import Settings
from memgraph.runtime.value import OffloadedValue


class Record:
    """A held value: where its bytes lie, and a load of them that began early."""

    def __init__(self, value: OffloadedValue, tier: Tier, settings: Settings):
        self.value, self.tier, self.settings = value, tier, settings
        self.launch: Launch | None = None
        self.asked = False  # a reload of it has begun
        self.early: Reload | None = None
        self._coming = False  # somebody is about to begin an early load, or has
        self._lock = threading.Lock()

    def load_early(self) -> None:
        """Begin to load the value before it is asked for, where nobody has yet."""
        with self._lock:
            if self.asked or self._coming:
                return
            self._coming = True
        begun: Reload | None = Reload(self, self.value.layout)
        with self._lock:
            if not self.asked:  # else who asked meanwhile has a load of its own, and this one is given up
                self.early, begun = begun, None

    def ask(self) -> Reload | None:
        """Note that the value is asked for; the load that began early, which is the caller's now."""
        with self._lock:
            self.asked = True
            early, self.early = self.early, None
        return early


class Offload:
    """A value between offload_start and offload_finish; dropped before, it gives the copy up."""

    def __init__(self, name: str, tensor: torch.Tensor, tier_name: str, settings: Settings):
        self.tier = tier_of(tier_name, tensor.device, settings)
        self.settings = settings
        self.copy: PendingCopy = self.tier.offload(name, tensor, settings)
        weakref.finalize(self, self.copy.cancel).atexit = False
        if not sanitizer.active():
            self.copy.start()

    def finish(self) -> Record:
        self.copy.finish()
        record = Record(self.copy.value, self.tier, self.settings)
        history(self.copy.device).add(record)
        return record


class Reload:
    """A value between reload_start and reload_finish, as `Offload`. `tensor` is its destination."""

    def __init__(self, record: Record, layout: Layout):
        record.value.check()
        self.tensor = record.tier.empty(record.value, layout)
        late = sanitizer.active()
        if late:
            bytes_of(self.tensor).fill_(sanitizer.POISON)
        self.copy: PendingCopy = record.tier.reload(record.value, self.tensor)
        weakref.finalize(self, self.copy.cancel).atexit = False
        if not late:
            self.copy.start()

    def finish(self) -> torch.Tensor:
        self.copy.finish()
        return self.tensor


def tier_of(name: str, device: torch.device, settings: Settings) -> Tier:
    """The tier of that name. Raises OffloadError for an unknown one."""
    if name == "host":
        return host_pool(device)
    if name == "nvme":
        return scratch_file(settings.folder, device)
    raise OffloadError(f"there is no tier {name!r}; allowed: host, nvme")


def reload(record: Record, layout: Layout) -> Reload:
    """Begin to load a value, or take over a load that has begun; then begin those that will be asked for next.

    Raises OffloadError where the value is lost, or was stored in another layout.
    """
    if not layout.holds(record.value.layout):
        raise record.value.error(f"it was stored as {record.value.layout} and asked for as {layout}")
    early = record.ask()
    begun = early if early is not None and Layout.of(early.tensor) == layout else Reload(record, layout)
    history(layout.device).look_ahead(record)
    return begun


class Launch:
    """The values that one run of a forward graph offloaded, in that order."""

    def __init__(self, graph: str):
        self.graph = graph
        self.names: set[str] = set()
        self.records: list[weakref.ref[Record]] = []

    def waiting(self) -> list[Record]:
        """Those that nobody has asked for, the last one first."""
        alive = (record() for record in reversed(self.records))
        return [record for record in alive if record is not None and not record.asked]


class History:
    """The runs of forward graphs on one device, as a stack: their backwards come last in, first out.

    The values of a run's own graph are loaded where its plan says; those of the run before it may begin within a
    window of bytes, because no plan reaches across graphs.
    """

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        name, graph = record.value.name, record.settings.graph
        with self._lock:
            last = self._launches[-1] if self._launches else None
            if last is None or last.graph != graph or name in last.names:
                self._launches = [launch for launch in self._launches if launch.waiting()]
                last = Launch(graph)
                self._launches.append(last)
            last.names.add(name)
            last.records.append(weakref.ref(record))
            record.launch = last

    def look_ahead(self, record: Record) -> None:
        """Begin to load values of the run before that of `record`, within the window of bytes of `record`."""
        room = record.settings.window
        if not room:
            return
        for other in self._before(record.launch):
            if other.value.layout.nbytes > room or other.value.lost:
                return
            other.load_early()
            room -= other.value.layout.nbytes

    def _before(self, launch: Launch | None) -> list[Record]:
        with self._lock:
            if launch not in self._launches:
                return []
            earlier = self._launches[: self._launches.index(launch)]
            return next((waiting for other in reversed(earlier) if (waiting := other.waiting())), [])


_histories: dict[torch.device, History] = {}
_lock = threading.Lock()


def history(device: torch.device) -> History:
    """The history of `device`."""
    with _lock:
        return _histories.setdefault(device, History())


def _in_a_child() -> None:
    """A forked child begins anew: the values of its parent are none of its own."""
    global _lock
    _histories.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_a_child)
