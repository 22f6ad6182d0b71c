"""Tables in Markdown, and figures as their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MIB = 2**20
NUMBER = re.compile(r"[-<]?[\d.,]+(e[-+]?\d+)?( s|%)?")


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; a column of numbers alone is set to the right."""
    rows = [[cell.replace("\n", " ").replace("|", "/") for cell in line] for line in lines]
    columns = list(zip(*rows, strict=True)) or [() for _ in heads]
    rules = ["---:" if any(column) and all(map(_is_number, column)) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))


def _is_number(cell: str) -> bool:
    return not cell or NUMBER.fullmatch(cell) is not None


def mib(nbytes: float | None, digits: int = 1) -> str:
    """Bytes as MiB; nothing of None."""
    return "" if nbytes is None else f"{nbytes / MIB:.{digits}f}"


def number(value: float | None, spelled: str = ".3f") -> str:
    """A number in a format; nothing of None."""
    return "" if value is None else format(value, spelled)
