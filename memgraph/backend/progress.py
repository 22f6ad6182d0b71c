"""What memgraph is doing while the user waits: one status line at a terminal, and the time of each stage.

A process has one status line, on stderr, for all graphs and threads: it shows the stage that began last, with its
seconds. Nothing is written to stdout, which may be a pipe.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

_REFRESHES = 8  # a second


class Progress:
    """Names and times the stages of a compilation.

    enabled: True shows the stages: at a terminal as a status line, elsewhere as one line of text at the beginning and
    at the end of each stage. False shows nothing. "auto" shows them at a terminal only, and only on the first rank.
    """

    def __init__(self, enabled: Literal["auto"] | bool = "auto") -> None:
        self.enabled = enabled
        self._stages: list[tuple[str, float]] = []
        self._lock = threading.Lock()

    @property
    def stages(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of each stage that has ended, in the order of their ends: nested ones come first."""
        with self._lock:
            return tuple(self._stages)

    @contextlib.contextmanager
    def stage(self, name: str, *, graph: str = "") -> Iterator[None]:
        """Show `name` and `graph` until the block ends, also by an exception; its time is recorded always."""
        running = _Running(f"{name} {graph}".rstrip())
        terminal = _is_terminal(sys.stderr)
        first = os.environ.get("RANK", "0") == "0"
        shown = (terminal and first) if self.enabled == "auto" else self.enabled
        try:
            if shown and terminal:
                _line.show(running)
            elif shown:
                _say(f"memgraph: {running.label}")
            yield
        finally:
            seconds = running.elapsed
            with self._lock:
                self._stages.append((name, seconds))
            if shown and terminal:
                _line.hide(running)
            elif shown:
                _say(f"memgraph: {running.label}: {seconds:.1f} s")


class _Running:
    """A stage that has begun."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.start


class _Line:
    """The status line of the process; rich draws it again from a thread of its own, so the seconds tick."""

    def __init__(self) -> None:
        self._running: list[_Running] = []
        self._live: Live | None = None
        self._lock = threading.Lock()

    def show(self, running: _Running) -> None:
        with self._lock:
            self._running.append(running)
            if self._live is None:
                # A display that does not work must not be what breaks a compilation.
                with contextlib.suppress(Exception):
                    self._live = self._draw()  # before it starts, so that `hide` stops what started in part
                    self._live.start(refresh=True)

    def hide(self, running: _Running) -> None:
        with self._lock:
            if running in self._running:  # an interrupt may have come before `show` was done
                self._running.remove(running)
            if self._running or self._live is None:
                return
            live, self._live = self._live, None
            with contextlib.suppress(Exception):
                live.stop()  # transient: the line is wiped, and the cursor is shown again

    def _draw(self) -> Live:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        class Quiet(Console):
            def on_broken_pipe(self) -> None:  # rich's own would close stdout and exit
                self.quiet = True

        spinner = Spinner("line")

        def current() -> Spinner:
            # Called by rich's thread, which must not wait for our lock: `hide` holds it while it stops rich.
            running = self._running[-1:]
            text = f"memgraph: {running[0].label}  {running[0].elapsed:.0f} s" if running else "memgraph"
            spinner.update(text=Text(text, overflow="ellipsis", no_wrap=True))
            return spinner

        return Live(
            get_renderable=current,
            console=Quiet(stderr=True),
            refresh_per_second=_REFRESHES,
            transient=True,
            # What is printed to the same terminal goes above the line; a pipe's data stays in the pipe.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=True,
        )


_line = _Line()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # it is no file, or it is closed
        return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)
