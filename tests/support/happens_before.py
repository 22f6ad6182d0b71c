"""Which work of a simulated device's log may run at once with other work on the same bytes.

A stream runs its own work in order. Work of different streams is ordered by an event that one records and the other, or
the host, waits for. All threads of the host count as one: what one has seen, all have. Two accesses to the same bytes,
one of them a write, that nothing orders are a race: on a real device the result depends on who is first.

    record STREAM EVENT      wait STREAM EVENT      hostwait EVENT      hostsync STREAM      devicesync
    copy STREAM WAY TO<-FROM BYTES                  memset STREAM PLACE BYTES
    touch STREAM r|w PLACE BYTES NAME               a kernel reads or writes: `Touches` notes it
    host r|w PLACE BYTES NAME                       the host itself does

Source: vector clocks (Mattern, "Virtual time and global states of distributed systems", 1988).
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Clock = dict[str, int]
HOST = "host"
# Operators that read and write nothing, or by copies, which the log has.
UNTOUCHED = ("empty", "new_empty", "record_stream", "_to_copy", "copy_")


@dataclasses.dataclass(frozen=True)
class Access:
    """One read or write of a range of bytes."""

    stream: str
    """Or HOST."""
    moment: int
    """Of the stream's own clock."""
    writes: bool
    start: int
    end: int
    name: str
    line: int
    """Of the log."""

    def conflicts(self, other: Access) -> bool:
        return (self.writes or other.writes) and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"line {self.line}: {self.name} {'writes' if self.writes else 'reads'} on {self.stream}"


@dataclasses.dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders."""

    earlier: Access
    later: Access

    def __str__(self) -> str:
        return f"{self.earlier} / {self.later}"


def races(lines: Iterable[str]) -> list[Race]:
    """All pairs of accesses in a log that nothing orders."""
    order = _Order()
    return [race for number, line in enumerate(lines, 1) for race in order.step(number, line.split())]


class _Order:
    def __init__(self) -> None:
        self._clocks: dict[str, Clock] = {HOST: {}}
        self._events: dict[str, Clock] = {}
        self._accesses: list[Access] = []

    def step(self, line: int, words: list[str]) -> Iterator[Race]:
        """Take in one line."""
        match words:
            case ["record", stream, event]:
                self._events[event] = dict(self._begin(stream))
            case ["wait", stream, event]:
                _merge(self._begin(stream), self._events.get(event, {}))
            case ["hostwait", event]:
                _merge(self._clocks[HOST], self._events.get(event, {}))
            case ["hostsync", stream]:
                _merge(self._clocks[HOST], self._begin(stream))
            case ["devicesync"]:
                for clock in list(self._clocks.values()):
                    _merge(self._clocks[HOST], clock)
            case ["copy", stream, way, places, size]:
                to, _, source = places.partition("<-")
                yield from self._access(line, stream, "copy", False, source, size)
                yield from self._access(line, stream, "copy", True, to, size)
                if way.endswith("pageable"):  # the call returns when the copy is done
                    _merge(self._clocks[HOST], self._begin(stream))
            case ["memset", stream, place, size]:
                yield from self._access(line, stream, "memset", True, place, size)
            case ["touch", stream, kind, place, size, name]:
                yield from self._access(line, stream, name, kind == "w", place, size)
            case ["host", kind, place, size, name]:
                yield from self._access(line, HOST, name, kind == "w", place, size)

    def _begin(self, stream: str) -> Clock:
        """The clock of work that the host gives a stream now: the host knows what it has waited for."""
        clock = self._clocks.setdefault(stream, {})
        _merge(clock, self._clocks[HOST])
        return clock

    def _access(self, line: int, stream: str, name: str, writes: bool, place: str, size: str) -> Iterator[Race]:
        clock = self._begin(stream)
        clock[stream] = clock.get(stream, 0) + 1
        start = int(place, 16)
        now = Access(stream, clock[stream], writes, start, start + int(size), name, line)
        left = []
        for before in self._accesses:
            ordered = clock.get(before.stream, 0) >= before.moment
            if not ordered and now.conflicts(before):
                yield Race(before, now)
            # Whoever is ordered behind this write is ordered behind what came before it and lay within it.
            if not (ordered and writes and now.start <= before.start and before.end <= now.end):
                left.append(before)
        self._accesses = [*left, now]


def _merge(clock: Clock, other: Clock) -> None:
    for stream, moment in other.items():
        clock[stream] = max(clock.get(stream, 0), moment)


def note(line: str) -> None:
    """Add a line to the log of the simulated device, on which this process must run."""
    ctypes.CDLL(None).simulated_note(line.encode())


class Touches(TorchDispatchMode):
    """Notes in the log what each operator of torch reads and writes on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.__name__
        # memgraph's operators touch nothing but by copies, which the log has.
        if func.namespace != "memgraph" and not name.startswith(UNTOUCHED):
            for kind, tensor in _touched(func, args, kwargs, result):
                _note_tensor(kind, tensor, name)
        return result


def _touched(func: Any, args: Any, kwargs: Any, result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    returns = func._schema.returns
    if returns and all(each.alias_info is not None and not each.alias_info.is_write for each in returns):
        return  # a view
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(given.get(argument.name)):
            yield ("w" if writes else "r"), tensor
    for each, value in zip(returns, result if len(returns) > 1 else (result,), strict=False):
        if each.alias_info is None:
            yield from (("w", tensor) for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _note_tensor(kind: str, tensor: torch.Tensor, name: str) -> None:
    if tensor.device.type != "cuda" or not tensor.numel():
        return
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)) + 1
    size = reach * tensor.element_size()
    note(f"touch {hex(stream) if stream else '(nil)'} {kind} {hex(tensor.data_ptr())} {size} {name}")
