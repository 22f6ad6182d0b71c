"""What a command writes of a report: which files, whether they can be written, and the writing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from memgraph.cli.terminal import console, fail

Json = Annotated[Path | None, typer.Option(help="write the whole report here, as JSON")]
Html = Annotated[Path | None, typer.Option(help="write a page here that a browser opens from disk")]
Plot = Annotated[Path | None, typer.Option(help="draw the timeline here")]
Trace = Annotated[Path | None, typer.Option(help="write a trace here, for ui.perfetto.dev")]
Snapshot = Annotated[Path | None, typer.Option(help="write a snapshot here, for pytorch.org/memory_viz")]
Details = Annotated[bool, typer.Option("--details", help="print all of it, and not one screen")]

KINDS = ("html", "plot", "trace", "snapshot")  # that some reports have and others not


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The files that were asked for."""

    json: Path | None = None
    html: Path | None = None
    plot: Path | None = None
    trace: Path | None = None
    snapshot: Path | None = None

    def _asked(self) -> Iterator[tuple[str, Path]]:
        for field in dataclasses.fields(self):
            if (file := getattr(self, field.name)) is not None:
                yield field.name, file

    def check(self) -> None:
        """Raise typer.Exit where a file could not be written, before anything is done for it."""
        for _, file in self._asked():
            if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
                raise fail(f"the report could not be written: {file} cannot be made")
        if self.plot and self.plot.suffix:
            from matplotlib.backend_bases import FigureCanvasBase

            kinds = FigureCanvasBase.get_supported_filetypes()
            if self.plot.suffix[1:].lower() not in kinds:
                allowed = f"allowed: .{', .'.join(sorted(kinds))}"
                raise fail(f"the report could not be written: {self.plot} is no picture; {allowed}")

    def suit(self, report: Any) -> None:
        """Raise typer.Exit where there is no such file of this kind of report."""
        for name, _ in self._asked():
            if not hasattr(report, "to_json" if name == "json" else name):
                allowed = ", ".join(f"--{kind}" for kind in KINDS if hasattr(report, kind))
                raise fail(f"there is no --{name} here; allowed: --json, {allowed}", 2)

    def write(self, report: Any, frontier: Any = None) -> None:
        """Write a report.  frontier: for its page.

        Raises typer.Exit where that fails, or where `suit` does.
        """
        self.suit(report)
        for name, file in self._asked():
            try:
                if name == "json":
                    file.write_text(report.to_json(), encoding="utf-8")
                elif frontier is not None:
                    report.html(file, frontier=frontier)
                else:
                    getattr(report, name)(file)
            except (OSError, ValueError) as problem:
                raise fail(f"the report could not be written: {problem}") from problem


def show(report: Any, details: bool) -> None:
    """Print a report: fitted to a terminal, and without broken words anywhere else."""
    if details and hasattr(report, "details"):
        typer.echo(report.details())
    elif console.is_terminal:
        console.print(report)
    else:
        typer.echo(str(report))
