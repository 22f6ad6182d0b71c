"""Processes that find a simulated device: their environment, and ways to start them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memgraph.simulator import libraries
from memgraph.simulator.cards import Card, card
from memgraph.simulator.libraries import SimulatorError

COPIED = 64 * 1024  # bytes; what is larger is not copied: its values mean nothing, its pages would cost host memory


def environment(
    simulated: Card | str,
    *,
    devices: int = 1,
    log: str | os.PathLike[str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment in which a process finds `devices` simulated cards.

    simulated: a card or words of its name. log: a file to which every operation on memory, streams and events is
    appended, one a line. base: the environment to start from, by default that of this process. Builds the libraries
    the first time. Raises SimulatorError where that fails, OptionsError for an unknown card.
    """
    chosen = card(simulated) if isinstance(simulated, str) else simulated
    found = dict(os.environ if base is None else base)
    paths = libraries.paths()
    before = [path for path in found.get("LD_PRELOAD", "").split(":") if path and Path(path).parent != paths[0].parent]
    found["LD_PRELOAD"] = ":".join([*map(str, paths), *before])
    found["TRITON_LIBCUDA_PATH"] = str(paths[0].parent)
    found["MEMGRAPH_SIMULATED_CARD"] = f"{chosen.figures()};devices={devices};copied_bytes={COPIED}"
    found["MEMGRAPH_SIMULATED_LOG"] = "" if log is None else os.fspath(log)
    found.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")  # cuDNN's attention would run on nothing, and fill the host
    found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(devices)))
    return found


def here() -> bool:
    """Whether this process runs on a simulated device."""
    return "MEMGRAPH_SIMULATED_CARD" in os.environ and "libcudart" in os.environ.get("LD_PRELOAD", "")


def run(
    arguments: Sequence[str],
    simulated: Card | str,
    *,
    devices: int = 1,
    log: str | os.PathLike[str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess:
    """Run this Python with `arguments` on simulated cards, and wait for it.  options: of `subprocess.run`.

    simulated, devices, log: as in `environment`, which raises the same.
    """
    env = environment(simulated, devices=devices, log=log, base=options.pop("env", None))
    return subprocess.run([sys.executable, *arguments], env=env, **options)


def call(
    function: str,
    *args: Any,
    simulated: Card | str = "H100",
    devices: int = 1,
    log: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Any:
    """Return what a function returns in a process of its own, on a simulated device.

    function: "module:name", of a module that can be imported there; the working folder is this one's. args, and what it
    returns, are JSON. Raises SimulatorError, with the end of its output, where the process fails, and
    subprocess.TimeoutExpired after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="memgraph-simulator-") as place:
        answer = Path(place) / "answer.json"
        arguments = ["-m", "memgraph.simulator.process", function, json.dumps(args), str(answer)]
        done = run(arguments, simulated, devices=devices, log=log, capture_output=True, text=True, timeout=timeout)
        if done.returncode or not answer.exists():
            said = (done.stdout + done.stderr)[-4000:]
            raise SimulatorError(f"{function} ended with {done.returncode} on the simulated device:\n{said}")
        return json.loads(answer.read_text())


def _answer(function: str, args: str, file: str) -> None:
    module, _, name = function.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), name)(*json.loads(args))
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    _answer(*sys.argv[1:])
