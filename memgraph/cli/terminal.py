"""What the commands share: how they print, how they refuse, how they read what a user types."""

from __future__ import annotations

import contextlib
import json as json_module  # `json` is a parameter's name
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console

from memgraph.base.errors import BudgetError, MemgraphError, OptionsError

console = Console(highlight=False)
WIDE = 1000  # columns that no table needs


def show(table: Any) -> None:
    """Print a table: fitted to a terminal, and at its full width anywhere else."""
    (console if console.is_terminal else Console(highlight=False, width=WIDE)).print(table)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Show a refusal of memgraph as a message and an exit code, without a traceback."""
    try:
        yield
    except MemgraphError as error:
        code = 3 if isinstance(error, BudgetError) else 2 if isinstance(error, OptionsError) else 1
        raise fail(str(error), code) from error


def fail(message: str, code: int = 1) -> typer.Exit:
    """Print the message, and return the exception that ends the command."""
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)
    return typer.Exit(code)


def parse_budget(text: str) -> str | float | None:
    """A budget as the backend takes it: None, a share (float), or text, which the backend parses."""
    if text.lower() == "none":
        return None
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def parse_value(text: str) -> Any:
    """Parse JSON; any other text stays as it is."""
    with contextlib.suppress(ValueError):
        return json_module.loads(text)
    return text


def parse_offload(text: str) -> Any:
    """The value of --offload: JSON as the option takes it, "host", or a folder."""
    value = parse_value(text)
    if not isinstance(value, str):
        return value
    return {"host": True} if value == "host" else {"nvme": value}


def pair(text: str, name: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise OptionsError(f"--{name} {text!r} has no `=`; allowed: KEY=VALUE")
    return key, value
