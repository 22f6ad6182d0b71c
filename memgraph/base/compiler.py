"""The C++ compiler, which Inductor needs as well, and what memgraph builds with it."""

from __future__ import annotations

import os
import shutil
import subprocess

from memgraph.base.errors import MemgraphError


class CompilerError(MemgraphError, RuntimeError):
    """No compiler was found, or a command of building failed."""


def compiler() -> str:
    """The path of the C++ compiler: that which CXX names, else g++ or clang++. Raises CompilerError."""
    named = os.environ.get("CXX", "")
    found = next(filter(None, map(shutil.which, (named, "g++", "clang++", "c++"))), None)
    if found is None:
        raise CompilerError("no C++ compiler was found, which Inductor needs as well: install g++, or name one in CXX")
    return found


def run(command: list[str], problem: str) -> str:
    """What a command of building prints. Raises CompilerError, which begins with `problem`.

    Nothing is loaded into it beforehand: LD_PRELOAD may hold the libraries of a simulated device.
    """
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        return subprocess.run(command, env=plain, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise CompilerError(f"{problem}: {command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise CompilerError(f"{problem}: {error.stderr[-2000:]}") from error
