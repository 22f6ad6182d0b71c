"""Where memgraph keeps what it may lose: plans and measurements."""

from __future__ import annotations

import os
import tempfile
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


def keep(file: Path, text: str) -> Path:
    """Write `text` aside and rename it to `file`: a reader sees the old or the new, never half. Raises OSError."""
    handle, aside = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.replace(aside, file)
    except BaseException:
        os.unlink(aside)
        raise
    return file
