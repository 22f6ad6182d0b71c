"""The timeline of a compiled step before it runs: which bytes Inductor's code allocates and frees, and when.

The sweep over an FX graph is an estimate, because Inductor fuses, reuses buffers and inlines. Its Python wrapper
(`CompiledFxGraph.source_code`) is exact: every allocation and every `del` stands in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx

from memgraph.base import compat
from memgraph.lower.memory import Log, Memory
from memgraph.lower.tensors import Shadow, Storage
from memgraph.lower.wrapper import Interpreter, NotReadable
from memgraph.planner.decisions import Event, Reuse, Timeline

__all__ = [
    "Input",
    "Lowered",
    "NotReadable",
    "Output",
    "inputs_of",
    "output_names",
    "placeholders",
    "read_wrapper",
    "saved_by_name",
    "saved_inputs",
    "step_timeline",
    "without_work",
]

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Input:
    """One argument of a compiled graph."""

    name: str
    bytes: int
    """Of its storage."""
    storage: int | str
    """Inputs that share a storage have the same."""
    dtype: torch.dtype | None = None
    """None: it is no tensor."""
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: str = "cpu"
    owned: bool = False
    """Whether the storage is freed when the wrapper drops its last name: a saved activation is, a parameter is not."""
    value: int | None = None
    """Of a number."""


@dataclass(frozen=True)
class Output:
    """One result of a compiled graph."""

    storage: int | str | None = None
    """None: it is no tensor."""
    bytes: int = 0
    input: str | None = None
    """The first input whose storage it lies in. None: the call allocated it."""
    dtype: torch.dtype | None = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True)
class Lowered:
    """What one call of a compiled graph does to memory."""

    phase: Phase
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    events: tuple[Event, ...]
    """Allocations and frees, above what is allocated when the call starts."""
    launches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The arguments of each Triton kernel's first launch, by the kernel's name: a tensor as its `Layout`, a number as
    it is."""
    reuses: tuple[Reuse, ...] = ()
    """Storages that another value is written to, and that got another name."""
    device: str = "cpu"
    """The kind of device whose memory this is about."""

    def counts(self, device: str) -> bool:
        """Whether bytes on a device, such as "cuda:0", are among those that the events are about."""
        return torch.device(device).type == self.device

    @property
    def peak(self) -> int:
        """The highest number of bytes above those that are allocated when the call starts."""
        return Timeline(self.events).peak


def read_wrapper(
    source: str,
    inputs: Sequence[Input],
    phase: Phase,
    *,
    symbols: Mapping[str, int] | None = None,
    device: str = "cpu",
) -> Lowered:
    """What a wrapper allocates and frees on `device` ("cpu" or "cuda"): the bytes that it asks for.

    symbols: values of sizes that depend on data (`u0`); those of the inputs' shapes follow from the inputs.

    Raises NotReadable, with the line, for anything whose effect on memory is not known.
    """
    log: list[Event] = []

    def record(name: str, nbytes: int) -> None:
        if nbytes:
            log.append(Event(phase, name, nbytes))

    memory = Memory(record, phase, device, lambda: len(log))
    interpreter = Interpreter(source, memory, symbols or {})
    first: dict[int | str, str] = {}
    for given in inputs:
        first.setdefault(given.storage, given.name)
    # The arguments are made within the call: a variable here would keep them alive.
    outputs = interpreter.call("call", _arguments(inputs, record, device))
    events = tuple(log)  # taken before the outputs go, whose end is no part of the call
    described = tuple(_describe(output, first) for output in outputs)
    reuses = tuple(_reuses(memory, phase))
    return Lowered(phase, tuple(inputs), described, events, interpreter.launches, reuses, device)


def _reuses(memory: Memory, phase: Phase) -> Iterator[Reuse]:
    """Storages that get another name than that of their allocation. Buffers are named as in the origins of a graph."""
    for after, storage, variable in memory.holders:
        name = f"{phase}.{variable}"
        if name != storage:
            yield Reuse(after, storage, name, phase)


def _arguments(inputs: Sequence[Input], record: Log, device: str) -> list[Shadow | int | None]:
    """The arguments of a call, in storages that the call frees if it owns them."""
    owned: dict[int | str, bool] = {}
    for given in inputs:  # one input that the caller holds keeps the storage of all that share it
        owned[given.storage] = owned.get(given.storage, True) and given.owned
    storages: dict[int | str, Storage] = {}
    for given in inputs:
        if given.dtype is not None and given.storage not in storages:
            counted = owned[given.storage] and torch.device(given.device).type == device
            storages[given.storage] = Storage(given.storage, given.bytes, record if counted else None)
    return [
        given.value
        if given.dtype is None
        else Shadow(storages[given.storage], given.size, given.stride, given.dtype, given.device)
        for given in inputs
    ]


def _describe(output: object, first: Mapping[int | str, str]) -> Output:
    """One result.  first: by storage, the first input that lies in it."""
    if not isinstance(output, Shadow):
        return Output()
    storage = output.storage
    place, shape = first.get(storage.name), (output.size, output.stride)
    return Output(storage.name, storage.bytes, place, output.dtype, *shape, output.device)


def placeholders(gm: fx.GraphModule) -> tuple[tuple[str, Any], ...]:
    """The name and the fake value of each input of a graph: all that `inputs_of` needs of it."""
    return tuple((node.name, node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder"))


def inputs_of(
    given: fx.GraphModule | Sequence[tuple[str, Any]],
    owned: bool | Collection[str] = False,
    sizes: Mapping[Any, int] | None = None,
) -> tuple[Input, ...]:
    """The inputs of a graph, from the fake tensors of its placeholders.

    owned: whether the call frees them: all or none of them, or the names of those that it frees.  sizes: values of
    symbolic sizes, by symbol; without, those that were seen when the graph was captured.
    """
    found: list[Input] = []
    names: dict[int, str] = {}
    for name, value in given if not isinstance(given, fx.GraphModule) else placeholders(given):
        if isinstance(value, torch.Tensor):
            storage = names.setdefault(compat.storage_id(value), name)
            nbytes = compat.size_at(value.untyped_storage().nbytes(), sizes)
            size, stride = (
                tuple(compat.size_at(entry, sizes) for entry in shape) for shape in (value.size(), value.stride())
            )
            layout = (value.dtype, size, stride, str(value.device))
            freed = owned if isinstance(owned, bool) else name in owned
            found.append(Input(name, nbytes, storage, *layout, owned=freed))
        else:
            number = compat.number_at(value, sizes) if isinstance(value, int | torch.SymInt) else None
            found.append(Input(name, 0, name, value=number))
    return tuple(found)


def output_names(gm: fx.GraphModule) -> tuple[str, ...]:
    """The names of the values that a graph returns, by position; "" for a constant."""
    return tuple(getattr(value, "name", "") for value in gm.graph.output_node().args[0])


def saved_by_name(outputs: Sequence[str], inputs: Sequence[Input]) -> dict[int, int]:
    """By position of a backward's input, the position of the forward's output; inputs that are not there are tangents.

    The partitioner names a backward's placeholder after the forward's value. If a value is returned to the user and
    saved as well, its last output is the saved one. States of generators have names of their own: they stand last among
    the saved outputs, and before the tangents.
    """
    positions = {name: position for position, name in enumerate(outputs) if name}
    links = {i: positions[given.name] for i, given in enumerate(inputs) if given.name in positions}
    saved = range(min(links.values(), default=len(outputs)), len(outputs))
    states = [position for position in saved if position not in links.values()]
    return links | dict(zip((i for i in range(len(inputs)) if i not in links), states, strict=False))


def without_work(gm: fx.GraphModule) -> str | None:
    """The wrapper of a graph that computes nothing: Inductor makes none and runs the graph as it is.

    None for a graph that computes something.
    """
    if any(node.op not in ("placeholder", "output") for node in gm.graph.nodes):
        return None
    given = "".join(f"{node.name}, " for node in gm.graph.find_nodes(op="placeholder"))
    returned = "".join(f"{getattr(value, 'name', value)}, " for value in gm.graph.output_node().args[0])
    taken = f"    {given}= args\n" if given else ""
    return f"def call(args):\n{taken}    args.clear()\n    return ({returned})\n"


def saved_inputs(
    inputs: Sequence[Input], forward: Lowered, saved: Mapping[int, int], held: Collection[int] = ()
) -> tuple[Input, ...]:
    """The inputs of a backward with the storages of the forward's outputs, and whether the backward frees them.

    saved: by position of an input, the position of the forward's output.
    held: positions of the forward's outputs that the user holds during the backward.
    """
    kept = {forward.outputs[position].storage for position in held}
    kept |= {given.storage for given in forward.inputs if not given.owned}
    linked = []
    for position, given in enumerate(inputs):
        if position not in saved:  # a tangent: autograd holds the loss's until the call returns
            given = replace(given, owned=given.size != () and compat.tangents_are_given_away())
        elif (output := forward.outputs[saved[position]]).storage is not None:
            owned = output.storage not in kept
            given = replace(given, bytes=output.bytes, storage=output.storage, owned=owned)
            given = replace(given, dtype=output.dtype, size=output.size, stride=output.stride)
        linked.append(given)
    return tuple(linked)


def _laid_out_anew(backward: Lowered, saved: Collection[int]) -> list[Event]:
    """Copies of tangents that come in another layout than the backward was traced with: AOTAutograd makes all of them,
    and then lets go of what came.

    It traces with the layout of the output. In which layout a gradient comes is up to who makes it, another graph
    mostly, which hands out contiguous ones: so the gradient of an output that is not contiguous is counted as copied.
    """
    copied = [
        (f"the layout of {given.name}", given.bytes)
        for i, given in enumerate(backward.inputs)
        if i not in saved and backward.counts(given.device) and not _is_contiguous(given.size, given.stride)
    ]
    return [Event("backward", name, sign * size) for sign in (1, -1) for name, size in copied]


def _is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    return all(
        n == 1 or step == math.prod(size[dim + 1 :]) for dim, (n, step) in enumerate(zip(size, stride, strict=True))
    )


def step_timeline(
    forward: Lowered, backward: Lowered | None, saved: Mapping[int, int] | None = None, dropped: Collection[int] = ()
) -> Timeline:
    """A whole step above the baseline: the forward, the tangents, the backward.

    backward: read with the inputs of `saved_inputs`.  saved: as there; other inputs of the backward are tangents.
    dropped: positions of the forward's outputs that the user drops before the backward begins.
    """
    events, reuses = list(forward.events), list(forward.reuses)
    stay = {output.storage for n, output in enumerate(forward.outputs) if n not in dropped}
    made = [output for output in forward.outputs if output.input is None and forward.counts(output.device)]
    gone = {output.storage: output.bytes for output in made if output.storage not in stay and output.bytes}
    events += [Event("forward", str(name), -size) for name, size in gone.items()]
    if backward is not None:
        known = saved or {}
        given = [tangent for i, tangent in enumerate(backward.inputs) if i not in known and tangent.bytes]
        tangents = [
            (str(tangent.storage), tangent.bytes, tangent.owned) for tangent in given if backward.counts(tangent.device)
        ]
        events += [Event("backward", name, size) for name, size, _ in tangents]
        events += _laid_out_anew(backward, known)
        reuses += [replace(reuse, after=reuse.after + len(events)) for reuse in backward.reuses]
        events += backward.events
        events += [Event("backward", name, -size) for name, size, owned in tangents if not owned]
    return Timeline(tuple(events), tuple(reuses))
