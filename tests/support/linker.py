"""A linker that takes little of the time in which a C++ kernel is compiled.

GNU ld takes a quarter of it, gold a sixth, nearly all of that to read the symbols of torch's libraries, which a process
that runs a kernel has loaded anyway. So kernels are linked by gold against empty libraries of the same names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("torch", "torch_cpu", "torch_python")


def use_quick_linker(folder: str) -> None:
    """Have g++ use it in this process and those that it starts; nothing where there is no gold.

    folder: a new one, which stays for as long as anything is compiled.
    """
    gold, compiler = shutil.which("ld.gold"), shutil.which("g++")
    if gold is None or compiler is None:
        return
    os.mkdir(folder)
    for name in NAMES:
        file = f"{folder}/lib{name}.so"
        soname = f"-Wl,-soname,lib{name}.so"
        subprocess.run([compiler, "-shared", "-nostdlib", "-x", "c", os.devnull, soname, "-o", file], check=True)
    linker = Path(folder, "ld")
    needed = " ".join(f"-l{name}" for name in NAMES)  # before what g++ asks for, and though they have no symbol
    linker.write_text(
        f"""#!/bin/sh
case " $* " in
*" -ltorch_cpu "*) exec {gold} -L{folder} --no-as-needed {needed} "$@" ;;
*) exec {gold} "$@" ;;
esac
"""
    )
    linker.chmod(0o755)
    os.environ["COMPILER_PATH"] = folder  # where g++ looks for it first
