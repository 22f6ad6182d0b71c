"""Byte counts as people write them: `"20GiB"` to 21474836480 and back."""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS = {unit.lower(): 1024**power for power, unit in enumerate(_BINARY)} | {
    unit.lower(): 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), start=1)
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+)\s*")

ALLOWED = 'a number of bytes (int), or text with a unit: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, as in "20GiB"'


def parse_size(size: object, *, allow_zero: bool = False) -> int:
    """Return `size` in bytes.

    Text needs a unit, binary (`KiB` = 1024 B) or decimal (`KB` = 1000 B), in upper or lower case, with or
    without a space before it. A part of a byte is dropped, so that a bound is never widened.

    Raises ValueError for anything else, a negative size, and zero unless `allow_zero`.
    """
    if type(size) is int:  # not bool
        parsed = size
    elif isinstance(size, str) and (match := _SIZE.fullmatch(size)) and match[2].lower() in _UNITS:
        parsed = int(Decimal(match[1]) * _UNITS[match[2].lower()])
    else:
        raise ValueError(f"{size!r} is not a size; allowed: {ALLOWED}")
    if parsed < 0 or (parsed == 0 and not allow_zero):
        raise ValueError(f"{size!r} is not a size: it must be {'0' if allow_zero else '1'} byte or more")
    return parsed


def format_size(size: int) -> str:
    """Return `size` (bytes) in the largest binary unit that fits: `"20.0 GiB"`, `"512 B"`."""
    scaled = float(size)
    for unit in _BINARY:
        # Rounded first, so that 1023.99 KiB reads 1.0 MiB and not 1024.0 KiB.
        if abs(round(scaled, 1)) < 1024 or unit == _BINARY[-1]:
            break
        scaled /= 1024
    return f"{size} B" if unit == "B" else f"{scaled:.1f} {unit}"


def round_up(size: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `size`."""
    return -(-size // step) * step
