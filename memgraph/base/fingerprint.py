"""Which version of memgraph this is, to the byte: a plan of another version is never used again."""

from __future__ import annotations

import functools
import hashlib
import importlib
from pathlib import Path

PACKAGES = ("memgraph", "memgraph.passes")  # an editable installation keeps the second outside of the first


@functools.lru_cache(maxsize=1)
def source_fingerprint() -> str:
    """A hash of memgraph's own source (hexadecimal SHA-256): another version of memgraph is another configuration."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        file = importlib.import_module(package).__file__
        assert file is not None
        folder = Path(file).parent
        for source in sorted(folder.rglob("*.py")):
            digest.update(str(source.relative_to(folder)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
