"""Plans kept on disk: a process whose graphs come from warm caches still knows what was planned.

Any record may be lost at any time. No failure of the disk fails a compilation.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from memgraph.base.folder import cache_folder, write_atomically

KEPT = 512  # records
KEPT_BYTES = 256 * 1024**2  # a large graph's record, with its timelines, is some MiB
_ABANDONED = 3600  # seconds after which an unfinished file belongs to no living process
_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")

_logger = logging.getLogger(__name__)


class Store:
    """JSON records by key in `folder`; by default `plans` in memgraph's cache folder.

    The folder is made at the first `put`.

    Any number of threads and processes may share a folder: a record is read whole or not at all, and of two
    written at once the later one stays.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, kept: int = KEPT, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._kept, self._kept_bytes = kept, kept_bytes

    @property
    def folder(self) -> Path:
        """Where the records lie. Raises OSError where the cache folder cannot be made."""
        return cache_folder() / "plans" if self._folder is None else self._folder

    def entries(self) -> list[tuple[str, float]]:
        """The keys of all records, each with the time at which it was last used (seconds since 1970), newest first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                key, dot, kind = entry.name.rpartition(".")
                if dot and kind == "json" and _KEY.fullmatch(key):
                    with contextlib.suppress(OSError):  # another process prunes
                        found.append((key, entry.stat().st_mtime))
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def get(self, key: str, *, use: bool = True) -> dict[str, Any] | None:
        """The record, or None where there is no readable one. A corrupt record is removed.

        use: whether this counts as a use of it; those used last are kept longest.
        """
        name = _file_name(key)
        try:
            file = self.folder / name
            text = file.read_bytes()
        except OSError:
            return None
        try:
            record = json.loads(text)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            _logger.warning("removed %s, which is corrupt: %s", file, error)
            # A good record that another process has just written is lost with it, and its graph is planned again.
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        with contextlib.suppress(OSError):
            if use:
                os.utime(file)  # pruning removes the records that were not used for longest
        return record

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keep `record` under `key`. A failure of the disk is only logged.

        Raises TypeError for a record that is not JSON.
        """
        name, text = _file_name(key), json.dumps(record, separators=(",", ":"))
        try:
            folder = self.folder
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name, text)
            self._prune(folder, name)
        except OSError as error:
            _logger.warning("the plan is not kept: %s", error)

    def _prune(self, folder: Path, newest: str) -> None:
        """Remove the records least recently used, beyond the bounds, but never `newest`."""
        records: list[tuple[int, str, int]] = []
        now = time.time()
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    stat = entry.stat()
                    if entry.name.endswith(".tmp") and now - stat.st_mtime > _ABANDONED:
                        os.unlink(entry.path)
                except OSError:  # another process prunes, too
                    continue
                if entry.name.endswith(".json"):
                    records.append((stat.st_mtime_ns, entry.name, stat.st_size))
        # Two files can have the same time, so the one just written is put first by name.
        records.sort(key=lambda record: (record[1] == newest, *record), reverse=True)
        total = 0
        for place, (_, name, size) in enumerate(records):
            total += size
            if name != newest and (place >= self._kept or total > self._kept_bytes):
                with contextlib.suppress(OSError):
                    os.unlink(folder / name)


def _file_name(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot name a record; allowed: letters, digits, _ and -, at most 200 of them")
    return f"{key}.json"
