"""The scratch of the kernels of one compilation: by rule, as measured before, measured now, or not known.

rule that is exact?  ->  kept from another call?  ->  fits into the room: measure  ->  bound, or 0, and a note
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from memgraph import simulator
from memgraph.base.folder import cache_folder
from memgraph.base.sizes import format_size
from memgraph.base.store import Store
from memgraph.facts.kernel_scratch import cuda, cuda_sorts, trial
from memgraph.facts.kernel_scratch.machine import fingerprint
from memgraph.facts.kernel_scratch.operands import Call, Indescribable
from memgraph.facts.kernel_scratch.rules import rule_of
from memgraph.facts.operators import qualified_name
from memgraph.machine import memory

# The trial of an operator without a bound may take this many times its operands: twice the columns of a 3 x 3
# convolution.
_UNBOUNDED = 18
# Smaller trials are made under every budget: bytes that a plan does not know may break it.
SMALL = 64 * 1024**2
_KEPT = 4096  # figures on disk
_NOTES = 8  # operators that a report names
_CPU = torch.device("cpu")

_measured: dict[str, int] = {}  # by fingerprint and call; a figure never changes, so any thread may add one


class Kernels:
    """Looks up kernels for one compilation and remembers what it could not find out."""

    def __init__(self, room: int = 0, store: Store | None = None, *, machine: int | None = None) -> None:
        """room: bytes that the operands of a trial may take; 0 for no trials.

        machine: bytes that the operands and the largest possible scratch of a trial may take, by default the same.
        store: keeps figures beyond this process.
        """
        self.room, self.store = room, store
        self.machine = room if machine is None else machine
        self._unknown: dict[str, tuple[int | None, str]] = {}
        self._refused: dict[str, str] = {}  # calls whose trial failed: not again
        self._elsewhere: set[str] = set()

    def bytes_of(
        self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any, device: str = "cpu"
    ) -> int:
        """The most bytes that a kernel on `device` ("cpu" or "cuda") holds beyond its outputs; 0, with a note, if
        nothing at all is known.

        op: an OpOverload or its packet.  args, kwargs, outputs: tensors, FX nodes, or anything with the fields `size`,
        `stride` and `dtype`; and plain data.
        """
        try:
            call = Call.of(op, args, kwargs, outputs)
            return self._of(call) if device == "cpu" else self._on_cuda(call)
        except Indescribable as problem:
            return self._not_known(qualified_name(op) or str(op), None, f"it takes {problem}")

    def _on_cuda(self, call: Call) -> int:
        """By rule; what only the card knows is tried where there is one."""
        rule = cuda.RULES.get(call.name)
        if rule is None:
            self._elsewhere.add(call.name)
            return 0
        try:
            if call.name in cuda.AS_THE_CARD_CHOOSES and torch.cuda.is_available() and not simulator.here():
                return self._tried(f"{cuda.card()} {fingerprint()} {call}", call, cuda.expected(call), "cuda")
            return rule(call)
        except cuda_sorts.NotKnown as problem:
            return self._not_known(call.name, None, str(problem))
        except Exception as problem:  # arguments that a rule does not know: no reason to end a compilation
            return self._not_known(call.name, None, f"its rule failed: {problem!r}")

    def _of(self, call: Call) -> int:
        try:
            rule = rule_of(call)
            bound = rule.bytes(call) if rule else None
        except Exception as problem:  # arguments that a rule does not know: no reason to end a compilation
            return self._not_known(call.name, None, f"its rule failed: {problem!r}")
        if rule is not None and bound is not None and (rule.exact or bound == 0):
            return bound
        return self._tried(f"{fingerprint()} {call}", call, bound, "cpu")

    def _tried(self, key: str, call: Call, bound: int | None, device: str) -> int:
        """As measured, now or before; the bound, with a note, where the operator cannot be run."""
        known = self._kept(key)
        if known is not None:
            return known
        try:
            return self._measure(key, call, bound, device)
        except trial.NotTried as problem:
            return self._not_known(call.name, bound, str(problem))

    def _measure(self, key: str, call: Call, bound: int | None, device: str) -> int:
        if key in self._refused:
            raise trial.NotTried(self._refused[key])
        operands = trial.needs(call)
        needed = operands + (bound if bound is not None else _UNBOUNDED * operands)
        if not self.room:
            raise trial.NotTried("nothing was run")
        if operands > self.room:
            reason = f"a trial takes {format_size(operands)} at least, there is room for {format_size(self.room)}"
            raise trial.NotTried(reason)
        if needed > self.machine:
            reason = f"a trial may take {format_size(needed)}, the machine has {format_size(self.machine)} for it"
            raise trial.NotTried(reason)
        try:
            found = trial.measure(call, device)
        except trial.NotTried as problem:
            self._refused[key] = str(problem)
            raise
        _measured[key] = found
        if self.store is not None:
            self.store.put(_name(key), {"bytes": found, "of": key})
        return found

    def _kept(self, key: str) -> int | None:
        if key not in _measured and self.store is not None:
            kept = self.store.get(_name(key)) or {}
            if kept.get("of") == key and isinstance(kept.get("bytes"), int):
                _measured[key] = max(0, kept["bytes"])
        return _measured.get(key)

    def _not_known(self, name: str, bound: int | None, reason: str) -> int:
        before = self._unknown.get(name, (0, ""))[0]
        most = None if bound is None or before is None else max(before, bound)
        self._unknown[name] = (most, reason)
        return bound or 0

    @property
    def notes(self) -> tuple[str, ...]:
        """For a report: the operators whose scratch is not known, how much is counted for them, and why."""
        found = [
            f"scratch memory of {name} is not known ({reason}): "
            + ("none is counted" if bound is None else f"up to {format_size(bound)} is counted for a call")
            for name, (bound, reason) in self._unknown.items()
        ]
        more = len(found) - _NOTES
        found[_NOTES:] = [f"nor is that of {more} other operators"] if more > 0 else []
        if self._elsewhere:
            names = ", ".join(sorted(self._elsewhere)[:_NOTES])
            several = len(self._elsewhere) > 1
            which = f"{len(self._elsewhere)} operators" if several else "an operator"
            found.append(f"scratch memory of {which} on CUDA is not counted: {names}")
        return tuple(found)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


_current: contextvars.ContextVar[Kernels] = contextvars.ContextVar("memgraph.kernels")


def current() -> Kernels:
    """The kernels of the compilation that is under way; outside of one, rules and figures of this process alone."""
    return _current.get(None) or Kernels()


@contextlib.contextmanager
def looking_up(kernels: Kernels) -> Iterator[Kernels]:
    """Within it `kernels` are the current ones, in this thread's context."""
    token = _current.set(kernels)
    try:
        yield kernels
    finally:
        _current.reset(token)


def figures() -> Store | None:
    """The figures in memgraph's cache folder; None if there can be no such folder."""
    try:
        return Store(cache_folder() / "kernels", kept=_KEPT)
    except OSError:
        return None


def for_compilation(budget: int | None, taken: int, cache: bool, device: torch.device = _CPU) -> Kernels:
    """Kernels of a device that are tried if the trial fits.

    budget: the bytes that a step of the compiled function may reach.  taken: the bytes that are allocated now. The
    operands of a trial stay under the budget, as they must when the step runs. Small ones are an exception: they are
    tried under every budget, since bytes that a plan does not know may break it. A whole trial takes at most half of
    the memory that the device has left.
    """
    free = memory.free_on(device) // 2
    room = free if budget is None else min(free, max(budget - taken, SMALL))
    return Kernels(room, figures() if cache else None, machine=free)


def for_dry_run(cache: bool, device: torch.device = _CPU) -> Kernels:
    """Kernels that try small calls only (a dry run tries small tiles as well), and else go by rules and kept figures.

    Without trials a convolution's scratch is its bound: 1.9 MB instead of 0.4 at the peak of a tiny ViT.
    """
    return Kernels(SMALL, figures() if cache else None, machine=memory.free_on(device) // 2)
