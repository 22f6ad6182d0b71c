"""From a tensor to a held value and back, and the prefetch of values that the next backward will ask for."""

from __future__ import annotations

import os
import sys
import threading
import weakref

import torch

from memgraph.base.errors import OffloadError
from memgraph.runtime import sanitizer
from memgraph.runtime.layout import Layout
from memgraph.runtime.pending_copy import PendingCopy
from memgraph.runtime.process import Tier, host_pool, scratch_file
from memgraph.runtime.settings import Settings
from memgraph.runtime.value import OffloadedValue


class Record:
    """A held value: where its bytes lie, and a prefetch of them."""

    def __init__(self, value: OffloadedValue, tier: Tier, settings: Settings):
        self.value, self.tier, self.settings = value, tier, settings
        self.launch: Launch | None = None
        self.asked = False  # the backward has asked for it
        self.early: Reload | None = None
        self._coming = False  # some thread prefetches it, or is about to
        self._lock = threading.Lock()

    def load_early(self) -> None:
        """Prefetch the value, unless another thread does so or the backward has asked for it."""
        with self._lock:
            if self.asked or self._coming:
                return
            self._coming = True
        try:
            begun: Reload | None = Reload(self, self.value.layout)
        except Exception:
            # There is no room for it yet, or it is lost. Whoever asks for this value is told; another value's reload,
            # on whose behalf it comes early, is well.
            with self._lock:
                self._coming = False
            return
        with self._lock:
            if not self.asked:  # otherwise the asker has begun a load of its own, and this one is cancelled
                self.early, begun = begun, None

    def ask(self) -> Reload | None:
        """Mark the value as asked for. Returns its prefetch, which now belongs to the caller, or None."""
        with self._lock:
            self.asked = True
            early, self.early = self.early, None
        return early


class Begun:
    """A copy that was begun, and is given up when this object dies before its finish."""

    copy: PendingCopy
    _ending = staticmethod(sys.is_finalizing)  # globals may be gone by then

    def __del__(self) -> None:
        if not self._ending() and hasattr(self, "copy"):  # a refused one has none
            self.copy.cancel()


class Offload(Begun):
    """A value between offload_start and offload_finish. Dropping it before the finish cancels the copy."""

    def __init__(self, name: str, tensor: torch.Tensor, tier_name: str, settings: Settings):
        self.tier = tier_of(tier_name, tensor.device, settings)
        self.settings = settings
        self.copy = self.tier.offload(name, tensor, settings)
        if not sanitizer.active():
            self.copy.start()

    def finish(self) -> Record:
        self.copy.finish()
        record = Record(self.copy.value, self.tier, self.settings)
        history(self.copy.device).add(record)
        return record


class Reload(Begun):
    """A value between reload_start and reload_finish. `tensor` is its destination. Dropping it cancels the copy."""

    def __init__(self, record: Record, layout: Layout):
        record.value.check()
        self.tensor = record.tier.empty(record.value, layout)
        late = sanitizer.active()
        if late:
            layout.bytes_of(self.tensor).fill_(sanitizer.POISON)
        self.copy = record.tier.reload(record.value, self.tensor)
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
    """Load a value, or take over its prefetch; then prefetch the values that will be asked for next.

    Raises OffloadError where the value is lost, or was stored in another layout.
    """
    if not layout.holds(record.value.layout):
        raise record.value.error(f"it was stored as {record.value.layout} and asked for as {layout}")
    early = record.ask()
    begun = early if early is not None and Layout.of(early.tensor) == layout else Reload(record, layout)
    history(layout.device).look_ahead(record)
    return begun


class Launch:
    """The values that one launch of a forward graph offloaded, in that order."""

    def __init__(self, graph: str):
        self.graph = graph
        self.names: set[str] = set()
        self.records: list[weakref.ref[Record]] = []

    def waiting(self) -> list[Record]:
        """The records that nobody has asked for, the last one first."""
        alive = (record() for record in reversed(self.records))
        return [record for record in alive if record is not None and not record.asked]


class History:
    """The launches of forward graphs on one device, as a stack: their backwards come last in, first out.

    The values of a launch's own graph are loaded where its plan says. No plan reaches across graphs, so the values of
    the launch before it are prefetched within a window of bytes.
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
        """Prefetch values of the launch before that of `record`, within the window of bytes of `record`."""
        room = record.settings.window
        if not room:
            return
        for other in self._before(record.launch):
            if other.value.layout.nbytes > room or other.value.lost:
                return
            other.load_early()
            room -= other.value.layout.nbytes

    def _before(self, launch: Launch | None) -> list[Record]:
        """The records that nobody has asked for, of the newest launch before `launch` that has any; the last first."""
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
        found = _histories.get(device)
        if found is None:
            found = _histories[device] = History()
        return found


def _in_a_child() -> None:
    """Start anew in a forked child, which has none of its parent's values."""
    global _lock
    _histories.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_a_child)
