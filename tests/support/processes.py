"""Functions that run in a process of their own, with caches of its own.

Each such process is forked from one that has imported torch and memgraph, and has done nothing else: importing them
anew takes seconds of every test that asks what a second process finds.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PRELOAD = ("torch", "memgraph", "memgraph.backend.compilation", "torch._inductor.compile_fx")
SECONDS = 600


@functools.cache
def context() -> multiprocessing.context.ForkServerContext:
    """What starts the processes."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(PRELOAD))
    return found


def in_a_process(function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None) -> Any:
    """What a function of a module returns, in a process with these variables besides the present ones.

    Raises AssertionError if it fails.
    """
    here, there = context().Pipe(duplex=False)
    process = context().Process(target=_run, args=(there, dict(os.environ) | (environment or {}), function, args))
    process.start()
    there.close()
    try:
        failure, found = here.recv() if here.poll(SECONDS) else ("it takes too long", None)
    except EOFError:
        process.join()
        failure, found = f"it ended with {process.exitcode}", None
    process.kill() if failure else process.join()
    assert not failure, failure
    return found


def _run(there: Connection, environment: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    try:
        there.send(("", function(*args)))
    except BaseException:
        there.send((traceback.format_exc(), None))
