"""What is allocated when: a sweep over a program of values in execution order.

Two models of the same program. `fused=False` is the FX interpreter, exactly: every operator allocates its output
and a storage is freed after its last use. `fused=True` estimates Inductor: a pointwise value that only fused
operators read is not materialised unless it is costly to inline, its readers read its inputs instead; nor is one that
is costly, but that a single kernel of its size reads; an output may take the place of an input of its size that dies at
the same kernel and of which the kernel reads only the entry that it writes. Measured against Inductor's own wrapper in
docs/decisions/0002.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from memgraph.facts.values import Value

# Inductor materialises a value with several readers when inlining it would make each of them read more than this
# many buffers (torch._inductor.config.realize_reads_threshold).
MOST_INLINED_READS = 4
BUFFERS = frozenset(("extern", "reduction", "tuple", "primal"))
# Operators of these kinds fuse with nothing.
ALONE = frozenset(("extern", "tuple"))
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
    copied: frozenset[int] = frozenset()
    """The inputs that Inductor copies into another layout as the program begins; the copies live on after it."""
    settled: frozenset[int] = frozenset()
    """The slots that are written to memory whatever reads them: sums of a gradient, so that its parts are freed; masks,
    so that the random numbers that they are made of are freed; what an operator reads in a larger size; and parts of a
    gradient, so that the whole is not written."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a program allocates, step by step. A storage is named by the slot that owns it."""

    storage_of: tuple[int, ...]
    """By slot, its storage."""
    bytes: dict[int, int]
    """By storage, its size."""
    births: dict[int, int]
    """By storage, the slot whose step allocates it; for an input, its own slot, or that of the step before which it is
    copied. Inlined values have none."""
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
    storage_of = _storages(values, program, program.settled if fused else NOTHING)
    (births, last, size), elsewhere = (_allocated if fused else _interpreted)(values, program, storage_of)
    if program.copied and len(program.values) > program.inputs:
        births.update(dict.fromkeys((storage_of[slot] for slot in program.copied), program.inputs))
    copied = {}
    for slot, step in program.until:
        if step >= last.get(storage_of[slot], -1):
            copied[storage_of[slot]] = last[storage_of[slot]] = step
    kept = {storage_of[slot] for slot in program.outputs}
    kept.update(storage_of[slot] for slot in range(program.inputs) if slot not in program.owned)  # the caller's
    deaths = {s: at for s, at in last.items() if s not in kept and s in births}
    usage, in_place = _usage(values, program, births, deaths, size, fused, copied, elsewhere)
    return Sweep(tuple(storage_of), size, births, deaths, usage, in_place)


def _storages(values: Sequence[Value], program: Program, settled: Set[int]) -> list[int]:
    """The slot that owns the bytes of each slot: views share unless they are written, everything else owns its own."""
    owner: list[int] = []
    of_input: dict[int, int] = {}
    for slot, value in enumerate(program.values):
        facts = values[value]
        if slot < program.inputs:
            owner.append(of_input.setdefault(facts.storage, slot))
        elif facts.part and slot in settled:
            owner.append(slot)
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


Allocated = tuple[dict[int, int], dict[int, int], dict[int, int]]
"""By storage: the slot at which it is born, the last slot that touches it, its size. Storages come as they are born."""
Elsewhere = dict[int, Set[int]]
"""By slot, the storages of which its kernel reads other entries than the one that it writes: it cannot replace them."""
Within = dict[int, tuple[int, Set[int]]]
"""By slot of a pointwise value that is written for its readers: the only slot whose step reads it, itself where none
does yet, NOWHERE where several do; and the storages that its own step reads."""
NOWHERE = -1


def _interpreted(values: Sequence[Value], program: Program, storage_of: list[int]) -> tuple[Allocated, Elsewhere]:
    """As the FX interpreter allocates: every operator writes its output, and reads its inputs."""
    births: dict[int, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for slot, storage in enumerate(storage_of):
        if storage == slot and _born(values, program, slot, (births, last, size)):
            continue
        if slot >= program.inputs and slot not in program.loads:
            last[storage] = slot
            for read in program.reads[slot]:  # slots only grow: the last to touch a storage is the one that frees it
                last[storage_of[read]] = slot
    return (births, last, size), {}


def _allocated(values: Sequence[Value], program: Program, storage_of: list[int]) -> tuple[Allocated, Elsewhere]:
    """As Inductor allocates: values that are inlined get no buffer, and their readers read what they read."""
    held = [values[value] for value in program.values]
    parts = {slot for slot in program.settled if held[slot].part}  # a kernel writes them; elsewhere they are views
    kinds = ["pointwise" if slot in parts else value.kind for slot, value in enumerate(held)]
    readers, wanted = _wanted(held, program)
    found: Allocated = ({}, {}, {})
    last = found[1]
    elsewhere: Elsewhere = {}
    inlined: Elsewhere = {}  # the same of slots that are inlined
    heavy: set[int] = set()  # the slots into which a heavy function is inlined
    within: Within = {}
    through: list[int | frozenset[int]] = list(storage_of)  # the storage, or storages, that a reader of the slot reads
    for slot in range(program.inputs):
        if storage_of[slot] == slot:
            _born(values, program, slot, found)
    inputs, loads = program.inputs, program.loads
    steps = zip(program.reads[inputs:], kinds[inputs:], held[inputs:], storage_of[inputs:], strict=True)
    for slot, (sources, kind, value, storage) in enumerate(steps, inputs):
        if not sources and slot in loads:
            _born(values, program, slot, found)
            continue
        costly = value.heavy or (heavy and not heavy.isdisjoint(sources))
        moved: Set[int] = NOTHING
        if value.elsewhere or (inlined and not inlined.keys().isdisjoint(sources)):
            moved = _moved(value, sources, through, inlined)
        if kind == "view":  # costs nothing and runs nowhere: its readers read what it views
            through[slot] = through[sources[0]] if len(sources) == 1 else _together(through, sources)
            if costly:
                heavy.add(slot)
            if moved:
                inlined[slot] = moved
            if storage == slot:
                _born(values, program, slot, found)
            continue
        if slot not in wanted and kind not in BUFFERS:
            reads = through[sources[0]] if len(sources) == 1 else _together(through, sources)
            many = isinstance(reads, frozenset) and len(reads) > MOST_INLINED_READS
            if readers[slot] < 2 or not (costly or many):
                through[slot] = reads
                if costly:
                    heavy.add(slot)
                if moved:
                    inlined[slot] = moved
                continue
        if moved:
            elsewhere[slot] = moved
        if storage == slot and _born(values, program, slot, found):
            continue
        for read in sources:  # slots only grow: the last to touch a storage is the one that frees it
            reads = through[read]
            if isinstance(reads, int):
                last[reads] = slot
            else:
                last.update(dict.fromkeys(reads, slot))
        if within or (kind == "pointwise" and slot not in wanted and value.entries):
            _note_readers(within, slot, _each([through[read] for read in sources]), slot not in wanted)
    _merge(held, within, found, elsewhere)
    return found, elsewhere


def _note_readers(within: Within, slot: int, sources: set[int], unwanted: bool) -> None:
    """Note that a slot's step reads storages, and the slot itself where it is written for its readers alone."""
    for read in sources.intersection(within):
        reader, reads = within[read]
        within[read] = (slot if reader in (read, slot) else NOWHERE, reads)
    if unwanted:
        within[slot] = (slot, sources)


def _merge(held: Sequence[Value], within: Within, found: Allocated, elsewhere: Elsewhere) -> None:
    """Take out the storages of values that one kernel makes and reads: it keeps each entry in a register."""
    births, last, size = found
    runs: dict[int, int] = {}  # by value that is taken out, the slot whose kernel makes it
    for slot, (reader, sources) in reversed(within.items()):
        barred = elsewhere.get(reader, NOTHING)
        kinds = {held[slot].kind, held[reader].kind}
        if reader in (slot, NOWHERE) or kinds != {"pointwise"} or held[reader].entries != held[slot].entries:
            continue
        if not held[slot].entries or slot not in births:
            continue
        if slot in barred or (reader not in births and reader not in runs):
            continue
        runs[slot] = at = runs.get(reader, reader)
        for storages in found:
            del storages[slot]
        for read in sources:
            last[read] = max(last.get(read, at), at)
        if moved := elsewhere.pop(slot, NOTHING):
            elsewhere[at] = moved | elsewhere.get(at, NOTHING)


def _moved(
    value: Value, sources: Sequence[int], through: Sequence[int | frozenset[int]], inlined: Elsewhere
) -> Set[int]:
    """The storages of which a step reads other entries, itself or in what is inlined into it."""
    parts = [inlined[read] for read in sources if read in inlined]
    if value.elsewhere:
        parts.append(_each([through[sources[place]] for place in value.elsewhere]))
    return parts[0] if len(parts) == 1 else NOTHING.union(*parts)


def _born(values: Sequence[Value], program: Program, slot: int, found: Allocated) -> bool:
    """Add a storage.  Returns whether it is an output of an operator with several, which has allocated it.

    The recompute pass takes the tuple apart right where it is made.
    """
    births, last, size = found
    value, reads = program.values[slot], program.reads[slot]
    births[slot] = last[slot] = slot
    # A saved view keeps all of what it views alive.
    owner = values[values[value].storage if slot < program.inputs else value]
    size[slot] = owner.part if owner.part and slot in program.settled else owner.bytes
    # The operator allocates all its outputs; those that nothing reads die there.
    if len(reads) == 1 and reads[0] in births and values[program.values[reads[0]]].kind == "tuple":
        births[slot] = reads[0]
        size[reads[0]] -= size[slot]
        return True
    return False


def _each(parts: Iterable[int | frozenset[int]]) -> set[int]:
    """The storages of all parts."""
    found: set[int] = set()
    for part in parts:
        if isinstance(part, int):
            found.add(part)
        else:
            found |= part
    return found


def _together(through: Sequence[int | frozenset[int]], sources: Sequence[int]) -> int | frozenset[int]:
    """The storages that a reader of all these slots reads; itself where it is a single one."""
    if len(sources) == 2:  # most of them
        one, other = through[sources[0]], through[sources[1]]
        if one is other or one == other:
            return one
        if isinstance(one, int) and isinstance(other, int):
            return frozenset((one, other))
    found = _each([through[read] for read in sources])
    return found.pop() if len(found) == 1 else frozenset(found)


def _wanted(held: Sequence[Value], program: Program) -> tuple[Counter[int], set[int]]:
    """By slot, how many steps read it; and the slots that are written for steps which fuse with nothing, maybe through
    views, or for a view by strides.
    """
    readers = Counter(itertools.chain.from_iterable(program.reads))
    wanted = {*program.outputs, *program.settled, *(slot for slot, _ in program.until)}
    for slot in range(len(held) - 1, program.inputs - 1, -1):
        kind = held[slot].kind
        if held[slot].part and slot in program.settled:  # made from a whole of its own
            readers.subtract(program.reads[slot])
        elif kind in ALONE or (kind == "view" and (slot in wanted or held[slot].strided)):
            wanted.update(program.reads[slot])
    return readers, wanted


def _usage(
    values: Sequence[Value],
    program: Program,
    births: dict[int, int],
    deaths: dict[int, int],
    size: dict[int, int],
    fused: bool,
    copied: Mapping[int, int],
    elsewhere: Elsewhere,
) -> tuple[tuple[int, ...], dict[int, int]]:
    inputs, slots = program.inputs, len(program.values)
    change = [0] * (slots + 1)
    dying: dict[int, list[int]] = {}
    for storage, at in deaths.items():
        dying.setdefault(at, []).append(storage)
        change[at + 1] -= size[storage]
    born: set[int] = set()
    for storage, at in births.items():
        if at >= inputs:
            born.add(at)
            change[at] += size[storage]
    usage = list(itertools.accumulate(change[:slots]))
    in_place: dict[int, int] = {}
    for slot in sorted(born.intersection(dying)) if fused else ():
        made = values[program.values[slot]]
        if births.get(slot) == slot and (made.kind in ("pointwise", "reduction") or made.part):
            if made.twice and slot not in program.settled:
                usage[slot] += size[slot]
                continue
            barred = elsewhere.get(slot, NOTHING)
            alike = (
                s for s in dying[slot] if s != slot and size[s] == size[slot] and s not in copied and s not in barred
            )
            if (taken := next(alike, None)) is not None:
                in_place[slot] = taken
                usage[slot] -= size[slot]
    for slot, value in enumerate(program.values[inputs:], inputs):
        usage[slot] += values[value].scratch
    return tuple(usage), in_place


def written(values: Sequence[Value], program: Program) -> set[int]:
    """The values of a program that have memory of their own: all but views, and values inlined into their readers."""
    births = sweep(values, program, fused=True).births
    return {value for slot, value in enumerate(program.values) if slot in births}


def surely_written(values: Sequence[Value], program: Program, fused: bool) -> set[int]:
    """The values that are written to memory in a program, and in every program that adds readers to it."""
    held = [values[value] for value in program.values]
    _, wanted = _wanted(held, program)
    return {
        value
        for slot, value in enumerate(program.values)
        if slot >= program.inputs
        and held[slot].kind != "view"
        and (not fused or slot in wanted or held[slot].kind in BUFFERS)
    }
