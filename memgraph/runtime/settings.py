"""The options that a compiled graph hands to the runtime's operators."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields

from memgraph.base.errors import OptionsError


@dataclass(frozen=True)
class Settings:
    """The `options` string of the operators: a JSON object with these fields. None for a bound: there is none."""

    folder: str = ""
    """Where the scratch file lies (tier nvme)."""

    limit: int | None = None
    """The most bytes of the scratch file."""

    margin: int | float | None = None
    """How much of the disk stays free, in bytes or as a share (space.Space); None for the default."""

    cap: int | None = None
    """The most bytes of the host pool."""

    verify: bool = False
    """Keep a checksum of each value and compare it when the value comes back."""

    window: int = 0
    """Bytes that may be prefetched for the launch before this one, whose backward comes next; 0 is off."""

    graph: str = ""
    """A name of the graph. A value of another graph, or one whose name comes again, begins another launch."""

    gpudirect: bool = False
    """Copy between a GPU and the scratch file by GPUDirect (tier nvme), where cuFile takes the file and `verify` is
    off: checksums need the bytes in host memory."""

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def parse(cls, text: str) -> Settings:
        """Raises OptionsError for anything but a JSON object with the fields above."""
        try:
            given = json.loads(text)
            unknown = set(given) - {field.name for field in fields(cls)}
            if isinstance(given, dict) and not unknown:
                return cls(**given)
        except (TypeError, ValueError):
            unknown = {text}
        raise OptionsError(f"not options of the runtime: {', '.join(map(repr, sorted(unknown)))}")
