"""Torch's structured trace: what a compilation writes down of itself, to be read with tlparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Write a text into the trace under a name; `text` is called only where somebody traces (`TORCH_TRACE=folder`)."""
    _trace(name, "string", text)


def trace_data(name: str, data: Callable[[], Any]) -> None:
    """The same for plain data, which is written as JSON."""
    _trace(name, "json", data)


def _trace(name: str, encoding: str, content: Callable[[], Any]) -> None:
    from torch._logging import trace_structured

    trace_structured("artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=content)
