"""Functions that run in a process of their own on the simulated device, without importing torch anew for each.

`simulator.call` starts a Python: ten seconds of the processor until memgraph is imported, of which most tests need a
second. These are forked from one that has imported torch and touched no device; the simulator reads number of devices
and log anew. What torch reads when it is imported (PYTORCH_ALLOC_CONF, say) it does not: that needs `simulator.call`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

from memgraph import simulator
from tests.support.processes import SECONDS, in_a_process


def on_the_device(
    function: Callable[..., Any], *args: Any, devices: int = 1, log: str | os.PathLike[str] | None = None
) -> Any:
    """What a function of a module returns in such a process.

    args, and what it returns, are JSON; devices, log: as in `simulator.environment`. Raises AssertionError or
    SimulatorError where it fails.
    """
    # An older torch counts the devices when it is imported; a forked process may not use them then.
    if torch.__version__ < (2, 13):
        place = f"{function.__module__}:{function.__qualname__}"
        return simulator.call(place, *args, devices=devices, log=log, timeout=SECONDS)
    return in_a_process(_run, function, args, environment=simulator.environment("H100", devices=devices, log=log))


def _run(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    ctypes.CDLL(None).simulated_read_environment()
    return function(*args)
