"""What is allocated when: a sweep over a program of values in execution order.

Two models of the same program. `fused=False` is the FX interpreter, exactly: every operator allocates its output
and a storage is freed after its last use. `fused=True` estimates Inductor: a pointwise value that only fused
operators read is not materialised unless it is costly to inline, its readers read its inputs instead; an output may
take the place of an input of its size that dies at the same kernel. Measured against Inductor's own wrapper in
docs/decisions/0002.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from memgraph.facts.values import Value

# Inductor materialises a value with several readers when inlining it would make each of them read more than this
# many buffers (torch._inductor.config.realize_reads_threshold).
MOST_INLINED_READS = 4
BUFFERS = frozenset(("extern", "reduction", "tuple", "primal"))
NOTHING: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Program:
    """Slots in execution order: first the inputs, which exist at the start, then one slot a step."""

    values: tuple[int, ...]
    """By slot, the value that it holds."""
    reads: tuple[tuple[int, ...], ...]
    """By slot, the slots that its step reads; none for inputs."""
    inputs: int
    """The number of inputs."""
    outputs: frozenset[int]
    """The slots that live on after the program."""
    owned: frozenset[int]
    """The inputs whose storage is freed after its last use; the storages of the others are the caller's."""
    until: tuple[tuple[int, int], ...] = ()
    """(slot, step): the slot's storage stands at least until that step is done, since it is copied to another tier."""
    loads: frozenset[int] = frozenset()
    """The steps that bring a value back from another tier; they read nothing here."""
    dropped: frozenset[int] = frozenset()
    """Those of `outputs` whose storage goes soon after the program."""
    settled: frozenset[int] = frozenset()
    """The slots that are written to memory whatever reads them: sums of a gradient, so that its parts are freed; masks,
    so that the random numbers that they are made of are freed; and what an operator reads in a larger size."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a program allocates, step by step. A storage is named by the slot that owns it."""

    storage_of: tuple[int, ...]
    """By slot, its storage."""
    bytes: dict[int, int]
    """By storage, its size."""
    births: dict[int, int]
    """By storage, the slot whose step allocates it; for an input, its own slot. Inlined values have none."""
    deaths: dict[int, int]
    """By storage that is freed, the last slot whose step reads it or has it copied to another tier."""
    usage: tuple[int, ...]
    """By slot, the bytes that are allocated during its step, above those at the program's start."""
    in_place: dict[int, int]
    """By slot whose output takes the place of an input that dies there, that input's slot."""

    @property
    def peak(self) -> int:
        """The most bytes that are allocated during a step, above those at the program's start."""
        return max(self.usage, default=0)


def sweep(values: Sequence[Value], program: Program, fused: bool) -> Sweep:
    """Add up what is allocated while a program runs.  fused: which of the two models (see above)."""
    storage_of = _storages(values, program)
    real, touched = _kernels(values, program, storage_of, fused)
    births: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for slot, value in enumerate(program.values):
        storage = storage_of[slot]
        if storage == slot and real[slot]:
            births[slot] = slot
            # A saved view keeps all of what it views alive.
            size[slot] = values[values[value].storage if slot < program.inputs else value].bytes
            last.setdefault(slot, slot)
            container = _container(values, program, slot)
            if container in births:
                births[slot] = container
                size[container] -= size[slot]
                continue  # the recompute pass takes the tuple apart right where it is made
        for read in touched[slot]:  # slots only grow: the last to touch a storage is the one that frees it
            last[read] = slot
    copied = {}
    for slot, step in program.until:
        if step >= last.get(storage_of[slot], -1):
            copied[storage_of[slot]] = last[storage_of[slot]] = step
    kept = {storage_of[slot] for slot in program.outputs}
    callers = {storage_of[slot] for slot in range(program.inputs) if slot not in program.owned}
    deaths = {s: at for s, at in last.items() if s in births and s not in kept and s not in callers}
    usage, in_place = _usage(values, program, births, deaths, size, fused, copied)
    return Sweep(tuple(storage_of), size, births, deaths, usage, in_place)


def _storages(values: Sequence[Value], program: Program) -> list[int]:
    """The slot that owns the bytes of each slot: views share, everything else owns its own."""
    owner: list[int] = []
    of_input: dict[int, int] = {}
    for slot, value in enumerate(program.values):
        facts = values[value]
        if slot < program.inputs:
            owner.append(of_input.setdefault(facts.storage, slot))
        elif facts.kind == "view" or (facts.storage != value and facts.kind != "symbol"):
            owner.append(_viewed(values, program, slot, owner))
        else:
            owner.append(slot)
    return owner


def _viewed(values: Sequence[Value], program: Program, slot: int, owner: list[int]) -> int:
    storage = values[program.values[slot]].storage
    for read in program.reads[slot]:
        if values[program.values[read]].storage == storage:
            return owner[read]
    return slot


def _container(values: Sequence[Value], program: Program, slot: int) -> int:
    """The slot of the operator with several outputs of which this slot is one; -1 for every other slot.

    The operator allocates all its outputs; those that nothing reads die there.
    """
    reads = program.reads[slot]
    return reads[0] if len(reads) == 1 and values[program.values[reads[0]]].kind == "tuple" else -1


def _kernels(
    values: Sequence[Value], program: Program, storage_of: list[int], fused: bool
) -> tuple[list[bool], list[frozenset[int]]]:
    """Which slots get a buffer, and by slot the storages that its kernel reads, those of inlined values included."""
    count = len(program.values)
    kinds = [values[value].kind for value in program.values]
    readers, wanted = _wanted(kinds, program)
    real = [True] * count
    heavy = [False] * count  # whether a heavy function is inlined into the slot
    touched: list[frozenset[int]] = [NOTHING] * count
    through: list[frozenset[int]] = [NOTHING] * count
    for slot in range(count):
        if slot < program.inputs or slot in program.loads:
            through[slot] = frozenset((storage_of[slot],))
            continue
        sources = program.reads[slot]
        reads = through[sources[0]] if len(sources) == 1 else NOTHING.union(*[through[read] for read in sources])
        kind = kinds[slot]
        if not fused:
            touched[slot] = reads | {storage_of[slot]}
            through[slot] = frozenset((storage_of[slot],))
            continue
        through[slot] = reads
        heavy[slot] = values[program.values[slot]].heavy or any([heavy[read] for read in sources])
        if kind == "view":  # costs nothing and runs nowhere: its readers read what it views
            continue
        shared = readers[slot] > 1 and (heavy[slot] or len(reads) > MOST_INLINED_READS)
        if wanted[slot] or kind in BUFFERS or shared:
            touched[slot] = reads
            through[slot] = frozenset((storage_of[slot],))
            heavy[slot] = False
        else:
            real[slot] = False
    return real, touched


def _wanted(kinds: Sequence[str], program: Program) -> tuple[list[int], list[bool]]:
    """By slot, how many steps read it, and whether one of them fuses with nothing, itself or through views."""
    readers = [0] * len(kinds)
    wanted = [False] * len(kinds)
    for slot in (*program.outputs, *program.settled, *(slot for slot, _ in program.until)):
        wanted[slot] = True
    for slot in range(len(kinds) - 1, program.inputs - 1, -1):
        kind = kinds[slot]
        needs = kind in ("extern", "tuple") or (kind == "view" and wanted[slot])
        for read in program.reads[slot]:
            readers[read] += 1
            if needs:
                wanted[read] = True
    return readers, wanted


def _usage(
    values: Sequence[Value],
    program: Program,
    births: dict[int, int],
    deaths: dict[int, int],
    size: dict[int, int],
    fused: bool,
    copied: Mapping[int, int],
) -> tuple[tuple[int, ...], dict[int, int]]:
    dying: dict[int, list[int]] = {}
    for storage, at in deaths.items():
        dying.setdefault(at, []).append(storage)
    born: dict[int, int] = {}
    for storage, at in births.items():
        born[at] = born.get(at, 0) + size[storage]
    total = 0
    usage = []
    in_place: dict[int, int] = {}
    for slot, value in enumerate(program.values):
        freed = dying.get(slot, [])
        if slot in born and slot >= program.inputs:
            if fused and values[value].kind in ("pointwise", "reduction"):
                taken = next((s for s in freed if s != slot and size[s] == size[slot] and s not in copied), None)
                if taken is not None:
                    in_place[slot] = taken
            total += born[slot]
            usage.append(total + values[value].scratch - (size[slot] if slot in in_place else 0))
        else:
            usage.append(total + (values[value].scratch if slot >= program.inputs else 0))
        for storage in freed:
            total -= size[storage]
    return tuple(usage), in_place


def written(values: Sequence[Value], program: Program) -> set[int]:
    """The values of a program that have memory of their own: all but views, and values inlined into their readers."""
    births = sweep(values, program, fused=True).births
    return {value for slot, value in enumerate(program.values) if slot in births}


def surely_written(values: Sequence[Value], program: Program, fused: bool) -> set[int]:
    """The values that are written to memory in a program, and in every program that adds readers to it."""
    kinds = [values[value].kind for value in program.values]
    _, wanted = _wanted(kinds, program)
    return {
        value
        for slot, value in enumerate(program.values)
        if slot >= program.inputs and kinds[slot] != "view" and (not fused or wanted[slot] or kinds[slot] in BUFFERS)
    }
