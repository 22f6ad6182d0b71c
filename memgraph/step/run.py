"""One process's training as it goes: rounds of launches, and optimizers that have stepped.

A round begins with a forward that finds no launch open, and ends when no launch is open any more: a step, or one
micro-batch of it. What a round was is known only after it.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memgraph.base import compat
from memgraph.machine import measure
from memgraph.step.recording import CpuRecorder, CudaRecorder, Mark, Moment, recorder
from memgraph.step.returned import Dropped, Returned
from memgraph.step.variants import Entry, Envelope


@dataclasses.dataclass(eq=False)
class Launched:
    """One forward of a round, and its backward. It keeps no graph alive."""

    graph: weakref.ref[Any]
    """The StepGraph."""
    entry: Entry
    open_in_forward: tuple[int, ...]
    """The launches that were open when it began, by their numbers in the round."""
    envelope: Envelope | None = None
    """What its plan takes with its sizes; None where that is not known."""
    open_in_backward: tuple[int, ...] = ()
    """The others that were open when its backward began."""
    marks: dict[Moment, Mark] = dataclasses.field(default_factory=dict)
    """What was recorded of it."""
    node: weakref.ref[Any] | None = None
    """Autograd's node: without it no backward can come."""
    closed: bool = False
    returned: Returned | None = None
    """Its outputs; None where nobody asks about them."""
    dropped: Dropped | None = None
    """Those that the caller did not hold any more when its backward began; None where that is not known."""

    @property
    def open(self) -> bool:
        """Whether its saved values are allocated."""
        return not self.closed and (self.node is None or self.node() is not None)


class Run:
    """What graphs of one process know of each other; any thread may tell it something."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._states: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.round: list[Launched] = []
        """The launches of the present round, in the order of their forwards."""
        self.last: list[Launched] = []
        """Those of the round before."""
        self._recorder: CpuRecorder | CudaRecorder | None = None
        self.generation = 0
        """How many times an optimizer has made state for parameters that had none."""

    def depth(self) -> int:
        """How many launches are open: their saved values are allocated."""
        with self._lock:
            return sum(launch.open for launch in self.round)

    def held(self) -> int:
        """Bytes that the plans of the open launches hold."""
        with self._lock:
            return sum(launch.envelope.held for launch in self.round if launch.open and launch.envelope is not None)

    def begin(self, graph: Any, entry: Entry) -> Launched:
        """A forward is about to run."""
        with self._lock:
            if not self.depth():
                self.stop_recording()
                self.last, self.round = self.round, []
            launch = Launched(weakref.ref(graph), entry, self._open())
            self.round.append(launch)
            return launch

    def record(self, device: torch.device) -> None:
        """Record the round that has just begun."""
        self._recorder = recorder(device, self.round[0].entry.level)

    def stop_recording(self) -> None:
        """End a recording, if there is one and this thread began it; its launches know of it then."""
        found = self._recorder
        if found is not None and found.thread is threading.current_thread():
            self._recorder = None
            for mark in found.stop():
                mark.launch.marks.setdefault(mark.moment, mark)

    def mark(self, launch: Launched, moment: Moment) -> None:
        """Tell the recording, if there is one."""
        if self._recorder is not None:
            self._recorder.mark(launch, moment)

    def launched(self, launch: Launched, outputs: Any) -> None:
        """A forward has returned: it is open until its backward has run, or nothing can run it any more."""
        self.mark(launch, Moment.RETURN)
        node = compat.compiled_node(outputs)
        if node is None:  # nothing of it is differentiated
            launch.closed = True
            return
        launch.node = weakref.ref(node)

        def begins(*_: Any) -> None:
            with self._lock:
                launch.open_in_backward = tuple(number for number in self._open() if self.round[number] is not launch)
                if launch.returned is not None and self.round[-1] is launch:
                    launch.dropped = launch.returned.dropped()
            self.mark(launch, Moment.BACKWARD)

        def ends(*_: Any) -> None:
            self.mark(launch, Moment.END)
            launch.closed = True

        node.register_prehook(begins)
        node.register_hook(ends)

    def stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer has stepped: what it allocates is no part of a round. A rehearsal's twin does not count."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if parameters and compat.is_fake(parameters[0]):
            return
        self.stop_recording()
        states = len(optimizer.state)
        with self._lock:
            if self._states.get(optimizer) != states:
                self._states[optimizer] = states
                self.generation += 1

    def _open(self) -> tuple[int, ...]:
        return tuple(number for number, launch in enumerate(self.round) if launch.open)


@functools.cache
def current() -> Run:
    """The run of this process: graphs of one step share one budget, whoever compiles them."""
    run = Run()
    register_optimizer_step_post_hook(run.stepped)
    return run


@functools.wraps(measure.measure_peak)
def measure_peak(fn: Callable[[], object], device: measure.Device = None) -> int:
    if current.cache_info().currsize:  # a process has one profiler: what is being recorded ends here
        current().stop_recording()
    return measure.measure_peak(fn, device)
