"""A C++ compiler that takes little of the tests' time.

It links quickly: GNU ld takes a quarter of the time of a kernel, gold a sixth, nearly all of that to read the symbols
of torch's libraries, which a process that runs a kernel has loaded anyway. So gold links against empty libraries of the
same names. And it compiles nothing twice in one run: many kernels of the tests are equal to others, which another
worker, or a process with caches of its own, has compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("torch", "torch_cpu", "torch_python")


def use_quick_compiler(folder: str) -> None:
    """Have this process and those that it starts use it as g++; nothing where there is none.

    folder: a new one, which stays for as long as anything is compiled.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        return
    os.mkdir(folder)
    if (gold := shutil.which("ld.gold")) is not None:
        _link_by(gold, compiler, folder)
    if (bash := shutil.which("bash")) is not None:
        _keep_libraries(bash, compiler, folder)


def _link_by(gold: str, compiler: str, folder: str) -> None:
    for name in NAMES:
        file = f"{folder}/lib{name}.so"
        soname = f"-Wl,-soname,lib{name}.so"
        subprocess.run([compiler, "-shared", "-nostdlib", "-x", "c", os.devnull, soname, "-o", file], check=True)
    needed = " ".join(f"-l{name}" for name in NAMES)  # before what g++ asks for, and though they have no symbol
    _write(
        f"{folder}/ld",
        f"""#!/bin/sh
case " $* " in
*" -ltorch_cpu "*) exec {gold} -L{folder} --no-as-needed {needed} "$@" ;;
*) exec {gold} "$@" ;;
esac
""",
    )
    os.environ["COMPILER_PATH"] = folder  # where g++ looks for it first


def _keep_libraries(bash: str, compiler: str, folder: str) -> None:
    """A shared library of one source is kept under a hash of all options and of the source."""
    _write(
        f"{folder}/g++",
        f"""#!{bash}
given=("$@") options=() sources=() output=
while (($#)); do
    case "$1" in
    -o) output=$2; shift ;;
    *.cpp) sources+=("$1") ;;
    *) options+=("$1") ;;
    esac
    shift
done
case " ${{options[*]}} " in *" -shared "*) library=1 ;; *) library= ;; esac
if [[ ! $library || ! $output || ${{#sources[@]}} != 1 || ! -f ${{sources[0]}} ]]; then
    exec {compiler} "${{given[@]}}"
fi
key=$({{ printf '%s\\n' "${{options[@]}}"; cat "${{sources[0]}}"; }} | sha256sum)
kept={folder}/${{key%% *}}.so
[ -f "$kept" ] && exec cp "$kept" "$output"
{compiler} "${{given[@]}}" || exit
cp "$output" "$kept.$$" && mv "$kept.$$" "$kept"
""",
    )
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _write(path: str, script: str) -> None:
    file = Path(path)
    file.write_text(script)
    file.chmod(0o755)
