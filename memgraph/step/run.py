"""One process's training as it goes: rounds of launches, and optimizers that have stepped.

A round begins with a forward that finds no launch open, and ends when no launch is open any more: a step, or one
micro-batch of it. What a round was is known only after it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memgraph.base import compat
from memgraph.base.errors import PlanWarning
from memgraph.machine import measure
from memgraph.reporting.step_report import StepReport
from memgraph.step import telling
from memgraph.step.checkpointed import Checkpointed
from memgraph.step.launched import Launched
from memgraph.step.ledger import Ledger
from memgraph.step.recording import Moment, Recorder, recorder
from memgraph.step.variants import Entry


class Run:
    """What graphs of one process know of each other; any thread may tell it something."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._states: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.round: list[Launched] = []
        """The launches of the present round, in the order of their forwards."""
        self.last: list[Launched] = []
        """Those of the round before."""
        self.ledger = Ledger()
        self._recorder: Recorder | None = None
        self._said: set[Hashable] = set()
        self._recorded: weakref.WeakMethod[Callable[[list[Launched]], None]] | None = None
        self.followed: set[str] = set()
        """Hashes of the operators of graphs that return a loss and do not end their rounds, as a refusal has shown."""
        self._backwards: dict[int, Launched] = {}
        """By thread, the launch whose backward has begun on it and is not known to be over."""
        self.checkpointed = Checkpointed()
        self.generation = 0
        """How many times an optimizer has made state for parameters that had none."""

    def tell_recorded(self, method: Callable[[list[Launched]], None]) -> None:
        """Have a method called, for as long as its object lives, with each round that was recorded and is over."""
        self._recorded = weakref.WeakMethod(method)

    def depth(self) -> int:
        """How many launches are open: their saved values are allocated."""
        with self._lock:
            return sum(launch.open for launch in self.round)

    def held(self) -> int:
        """Bytes that the plans of the open launches hold."""
        with self._lock:
            return sum(launch.envelope.held for launch in self.round if launch.open and launch.envelope is not None)

    def waiting(self) -> list[Any]:
        """The graphs of the open launches that have run, each once, in the order of the forwards."""
        with self._lock:
            ran = (launch.graph() for launch in self.round if launch.open and launch.variant is not None)
            return [graph for graph in dict.fromkeys(ran) if graph is not None]

    def repeated(self, graph: Any) -> int:
        """How many open launches of a graph have run."""
        with self._lock:
            ran = (launch for launch in self.round if launch.open and launch.variant is not None)
            return sum(launch.graph() is graph for launch in ran)

    def begin(self, graph: Any, entry: Entry) -> Launched:
        """A forward is about to run."""
        if compat.in_backward():
            self._goes_on()
        else:  # a backward that is not over has failed
            self._backwards.pop(threading.get_ident(), None)
        with self._lock:
            if not self.depth():
                self.stop_recording()
                self.last, self.round = self.round, []
                self.ledger.begin(self.round)
            launch = Launched(
                weakref.ref(graph),
                entry,
                self.round,
                self._open(),
                name=graph.name,
                device=graph.meter.device,
                budget=graph.room + graph.reserve,
                reserve=graph.reserve,
                forecasts=graph.meter.forecasts,
            )
            self.round.append(launch)
            return launch

    def withdraw(self, launch: Launched) -> None:
        """A forward that has begun does not run after all."""
        with self._lock:
            launch.close()
            self.round.remove(launch)
            for before in self.round:
                before.cut = True
        self.stop_recording()

    def record(self, device: torch.device, *, within: bool = False) -> bool:
        """Record the round that has just begun; returns whether that can be.

        within: only its launches, and not what is between them. Within a backward nothing begins: autograd sets the
        profiler after it as it was before.
        """
        if compat.in_backward():
            return False
        self._recorder = recorder(device, self.round[0].entry.level, within=within)
        return self._recorder is not None

    def stop_recording(self) -> None:
        """End a recording, if there is one and this thread began it; its launches know of it then.

        Within a backward it goes on: autograd sets the profiler after it as it was before.
        """
        found = self._recorder
        if found is not None and found.thread is threading.current_thread() and not compat.in_backward():
            self._recorder = None
            found.stop()
            for launch in self.round:
                telling.measured(launch, self.say_once)
                if launch.watched is not None:
                    launch.watched.remove()
            told = None if self._recorded is None else self._recorded()
            if told is not None and not self.depth():
                told(self.round)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A graph is compiled meanwhile: a recording of this thread pauses."""
        found = self._recorder
        if found is None or found.thread is not threading.current_thread() or compat.in_backward():
            yield
            return
        found.pause()
        try:
            yield
        finally:
            if found is self._recorder:
                found.resume()

    def mark(self, launch: Launched, moment: Moment) -> None:
        """Tell the recording, if there is one."""
        if self._recorder is not None:
            self._recorder.mark(launch, moment)
            if moment is Moment.END:
                telling.measured(launch, self.say_once)

    def say_once(self, what: Hashable, text: str) -> None:
        """Warn with a text, once for each `what`."""
        with self._lock:
            if what in self._said:
                return
            self._said.add(what)
        warnings.warn(text, PlanWarning, stacklevel=2)

    def launched(self, launch: Launched, outputs: Any) -> None:
        """A forward has returned: the launch is open until its backward has run, or nothing can run that any more."""
        self.mark(launch, Moment.RETURN)
        node = compat.compiled_node(outputs)
        if node is None:  # nothing of it is differentiated
            launch.close()
            return
        launch.node = weakref.ref(node)
        if self._recorder is not None:
            compat.holders_alone()  # counted here: within the backward it could not be
            launch.watch(outputs)
            watch = compat.on_end if self._recorder.within else compat.on_next
            launch.watched = watch(node, functools.partial(self._ends, launch))
        node.register_prehook(functools.partial(self._backward_begins, launch))

    def _backward_begins(self, launch: Launched, gradients: Any) -> None:
        """The backward of a launch is about to run.  gradients: as autograd hands them to it."""
        self._goes_on()
        with self._lock:
            if launch.round is not self.round or launch.closed:  # a retained graph runs again: the first time counts
                return
            others = tuple(number for number in self._open() if self.round[number] is not launch)
            recorded = self._recorder is not None  # nobody else asks for the tangents
            launch.backward_begins(others, compat.given_away(gradients, launch.device) if recorded else 0)
            if launch.returned is not None and self.round[-1] is launch:
                launch.given_up = launch.returned.dropped()
            if (graph := launch.graph()) is not None:
                if self.round[-1] is not launch:
                    graph.is_followed()
                if not graph.retained and compat.keeps_saved_values():
                    telling.not_retained(launch.name, self.say_once)
            self._backwards[threading.get_ident()] = launch
        self.mark(launch, Moment.BACKWARD)
        compat.after_backward(functools.partial(self._ends, launch))

    def _goes_on(self) -> None:
        """Something else than a backward runs on this thread: the one that began here is over."""
        if (launch := self._backwards.get(threading.get_ident())) is not None:
            self._ends(launch)

    def _ends(self, launch: Launched) -> None:
        """The backward of a launch is over; said again, it changes nothing."""
        with self._lock:
            threads = [thread for thread, running in self._backwards.items() if running is launch]
            for thread in threads:
                del self._backwards[thread]
        if threads:
            if launch.round is self.round:
                self.mark(launch, Moment.END)
            launch.close()

    def stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer has stepped: what it allocates is no part of a round, unless a hook of a backward has run it.

        A step on fake tensors does not count. Of one that Dynamo compiles only the trace comes here: what that makes
        is found by `look_for_states`.
        """
        if torch.compiler.is_compiling():
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if parameters and compat.is_fake(parameters[0]):
            return
        self.stop_recording()
        with self._lock:
            self._count_states(optimizer)

    def look_for_states(self, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Find out whether optimizers have made state without a word: these from now on, and those known before."""
        with self._lock:
            for optimizer in optimizers:
                self._states.setdefault(optimizer, _parameters_with_state(optimizer))
            for optimizer in list(self._states):
                self._count_states(optimizer)

    def _count_states(self, optimizer: torch.optim.Optimizer) -> None:
        states = _parameters_with_state(optimizer)
        if self._states.get(optimizer) != states:
            self._states[optimizer] = states
            self.generation += 1

    def _open(self) -> tuple[int, ...]:
        return tuple(number for number, launch in enumerate(self.round) if launch.open)


def _parameters_with_state(optimizer: torch.optim.Optimizer) -> int:
    """How many parameters have state. One that somebody derived and did not initialise is asked at launches, too."""
    return len(getattr(optimizer, "state", ()))


@functools.cache
def current() -> Run:
    """The run of this process: graphs of one step share one budget, whoever compiles them."""
    run = Run()
    register_optimizer_step_post_hook(run.stepped)
    return run


def step_report(device: torch.device | str | None = None) -> StepReport:
    """What a step of training takes on a device: launches, optimizers, what ran outside; predicted and measured.

    device: by default that of the newest launch. Raises LookupError where no graph was launched that is trained under a
    budget in bytes.
    """
    run = current()
    if not run.depth():  # a recording of a round that is over tells nothing more
        run.stop_recording()
    return run.ledger.report(None if device is None else torch.device(device))


@functools.wraps(measure.measure_peak)
def measure_peak(fn: Callable[[], object], device: measure.Device = None) -> int:
    if current.cache_info().currsize:  # a process has one profiler: what is being recorded ends here
        current().stop_recording()
    return measure.measure_peak(fn, device)
