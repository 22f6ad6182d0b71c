"""Reports as one page: a file of its own that a browser opens from disk, without a network.

The template, its style and its scripts lie in assets/, and are joined when a page is written. The data stand in it as
JSON, compressed (zlib) and in base64: the graphs, and the views that a reader chooses from.
"""

from __future__ import annotations

import base64
import html
import json
import os
import zlib
from importlib import resources
from pathlib import Path

from memgraph.reporting.page_views import Views

# In the order in which they are needed.
SCRIPTS = tuple("words data axis chart outside lanes live model frontier step diff ranks export main".split())
VERSION = 2  # of the data


def write(path: str | os.PathLike[str], views: Views) -> None:
    """Write the page of some views.  Raises OSError where the file cannot be written."""
    Path(path).write_text(document(views), encoding="utf-8")


def document(views: Views) -> str:
    """The text of the page."""
    data = {"version": VERSION, "parts": views.parts, "views": views.views}
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    pieces = {
        "TITLE": html.escape(f"memgraph: {views.title}"),
        "STYLE": _asset("style.css"),
        "DATA": base64.b64encode(packed).decode(),
        "SCRIPT": f'"use strict";\n(() => {{\n{scripts}\n}})();',
    }
    page = _asset("page.html")
    for name, piece in pieces.items():
        before, mark, after = page.partition(f"<!--{name}-->")
        assert mark, name
        page = before + piece + after
    return page


def _asset(name: str) -> str:
    return (resources.files("memgraph.reporting") / "assets" / name).read_text(encoding="utf-8")
