"""A report as one page: a file of its own that a browser opens from disk, without a network.

The template, its style and its scripts lie in assets/, and are joined when a page is written. The data stand in it as
JSON, compressed (zlib) and in base64.
"""

from __future__ import annotations

import base64
import html
import json
import os
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from memgraph.reporting import page_data
from memgraph.reporting.figures import Figures
from memgraph.reporting.step_figures import StepFigures

# In the order in which they are needed.
SCRIPTS = ("words", "data", "axis", "chart", "lanes", "live", "model", "step", "export", "main")
VERSION = 1  # of the data


def write(
    path: str | os.PathLike[str],
    parts: Sequence[Figures],
    *,
    step: StepFigures | None = None,
    summary: str = "",
) -> None:
    """Write the page of planned graphs, and of the step that they are parts of.  summary: of the step.

    Raises OSError where the file cannot be written.
    """
    Path(path).write_text(document(parts, step, summary), encoding="utf-8")


def document(parts: Sequence[Figures], step: StepFigures | None = None, summary: str = "") -> str:
    """The text of the page."""
    data: dict[str, Any] = {
        "version": VERSION,
        "parts": [page_data.part(figures) for figures in parts],
        "step": None if step is None else page_data.step(step, summary),
    }
    subject = f"a step on {step.device}" if step is not None else ", ".join(figures.graph for figures in parts)
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    pieces = {
        "TITLE": html.escape(f"memgraph: {subject}"),
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
