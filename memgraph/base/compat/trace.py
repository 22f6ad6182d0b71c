"""Torch's structured trace: what a compilation writes down of itself, to be read with tlparse."""

from __future__ import annotations

from collections.abc import Callable


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Write a text into the trace under a name, where somebody traces (`TORCH_TRACE=folder`); else it is not made."""
    from torch._logging import trace_structured

    trace_structured("artifact", lambda: {"name": name, "encoding": "string"}, payload_fn=text)
