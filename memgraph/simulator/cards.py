"""The cards that can be simulated: what torch, Inductor and Triton ask a device for."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from memgraph.base.errors import OptionsError
from memgraph.base.sizes import format_size, parse_size

MIB = 1024**2


@dataclasses.dataclass(frozen=True)
class Card:
    """One kind of card."""

    name: str
    """As the driver gives it. torch sees it with " (simulated)" behind it, so that no cache takes it for the card."""
    capability: tuple[int, int]
    """Such as (9, 0)."""
    multiprocessors: int
    l2_cache: int
    """Bytes; autotuning allocates as many."""
    memory: int
    """Bytes, as `torch.cuda.get_device_properties` says them."""
    shared_memory: int
    """Bytes of one multiprocessor; a block gets 1 KiB less."""
    threads: int
    """Of one multiprocessor."""
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    context: int = 512 * MIB
    """Bytes that the driver takes for a process, about."""

    def figures(self) -> str:
        """All fields as text, `name=value;...`, which the simulated libraries read from the environment."""
        major, minor = self.capability
        fields = dataclasses.asdict(self) | {"name": f"{self.name} (simulated)", "major": major, "minor": minor}
        del fields["capability"]
        return ";".join(f"{name}={value}" for name, value in fields.items())


_HOPPER: dict[str, Any] = {"capability": (9, 0), "multiprocessors": 132, "shared_memory": 233472, "threads": 2048}
_A100: dict[str, Any] = {
    "capability": (8, 0),
    "multiprocessors": 108,
    "shared_memory": 167936,
    "threads": 2048,
    "clock_khz": 1410000,
}
CARDS = (
    Card("NVIDIA H200 141GB HBM3e", **_HOPPER, l2_cache=60 * MIB, memory=143155 * MIB, clock_khz=1980000,
         memory_clock_khz=3201000, bus_bits=6144),
    Card("NVIDIA H100 80GB HBM3", **_HOPPER, l2_cache=50 * MIB, memory=81079 * MIB, clock_khz=1980000,
         memory_clock_khz=2619000, bus_bits=5120),
    Card("NVIDIA A100-SXM4-80GB", **_A100, l2_cache=40 * MIB, memory=81050 * MIB, memory_clock_khz=1593000,
         bus_bits=5120),
    Card("NVIDIA A100-SXM4-40GB", **_A100, l2_cache=40 * MIB, memory=40326 * MIB, memory_clock_khz=1215000,
         bus_bits=5120),
    Card("NVIDIA GeForce RTX 4090 24GB", (8, 9), multiprocessors=128, l2_cache=72 * MIB, memory=24080 * MIB,
         shared_memory=102400, threads=1536, clock_khz=2520000, memory_clock_khz=10501000, bus_bits=384),
)  # fmt: skip


def card(name: str, memory: int | str | None = None) -> Card:
    """Return the card whose name has all words of `name`: "H100", "a100 40gb", "4090"; of several the first in `CARDS`.

    memory: bytes, or a size like "10GiB", in place of the card's own.
    Raises OptionsError for a name of no card, and for a memory that is no size or holds no more than the driver takes.
    """
    words = _words(name)
    found = next((known for known in CARDS if words and words <= _words(known.name)), None)
    if found is None:
        names = ", ".join(known.name for known in CARDS)
        raise OptionsError(f"no card {name!r} can be simulated; allowed: words of {names}")
    if memory is None:
        return found
    try:
        size = parse_size(memory) if isinstance(memory, str) else memory
    except ValueError as problem:
        raise OptionsError(f"no memory of {memory!r} can be simulated: {problem}") from None
    if size <= found.context:
        taken = format_size(found.context)
        raise OptionsError(f"no memory of {memory!r} can be simulated: the driver takes {taken} of a card by itself")
    return dataclasses.replace(found, memory=size)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", re.sub(r"(\d)\s+gi?b\b", r"\1gb", name.lower())))
