"""Where memgraph's own source lies, and which version it is, to the byte."""

from __future__ import annotations

import functools
import hashlib
import importlib
from pathlib import Path

PACKAGES = ("memgraph", "memgraph.passes")  # an editable installation keeps the second outside of the first


@functools.cache
def source_folders() -> tuple[Path, ...]:
    """The folders that hold memgraph's source."""
    files = [importlib.import_module(package).__file__ for package in PACKAGES]
    return tuple(Path(file).parent for file in files if file is not None)


@functools.cache
def source_fingerprint() -> str:
    """A hash of memgraph's source (hexadecimal SHA-256): a plan of another version is never used again."""
    digest = hashlib.sha256()
    for folder in source_folders():
        for source in sorted(folder.rglob("*.py")):
            digest.update(str(source.relative_to(folder)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
