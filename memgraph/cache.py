"""Where memgraph keeps what it may lose: plans and measurements."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder, made for its owner alone (mode 0700) where it does not exist.

    It is `$MEMGRAPH_CACHE`, else `$XDG_CACHE_HOME/memgraph`, else `~/.cache/memgraph`. Raises OSError where
    it cannot be made.
    """
    if named := os.environ.get("MEMGRAPH_CACHE"):
        folder = Path(named).expanduser()
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "memgraph"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
