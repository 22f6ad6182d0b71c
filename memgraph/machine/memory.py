"""The machine's own memory."""

from __future__ import annotations

import os


def free_memory() -> int:
    """Bytes of memory that the machine could still give out (Linux: MemAvailable). No limit of a container counts."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
