"""The cache folder: plans, measurements, and libraries that were built, all of which may be lost."""

from __future__ import annotations

import contextlib
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


def write_atomically(file: Path, text: str) -> Path:
    """Write `text` to a temporary file and rename it to `file`, for its owner alone (mode 0600). Raises OSError.

    A reader sees the old text or the new, never a part. The temporary file lies in the same folder, since renaming is
    atomic only within one file system.
    """
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return file
