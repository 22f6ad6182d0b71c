"""The table that holds memgraph's rules for scratch memory: what ATen's CPU kernels take, measured.

    python -m tests.support.scratch_table                       measure all again, with this interpreter
    python -m tests.support.scratch_table --python PYTHON       with others beside it, for other versions of torch
    python -m tests.support.scratch_table --column > here.json  one column, here or on another machine
    python -m tests.support.scratch_table --join *.json         the table of such columns

Writes tests/support/scratch_table.json. Every case of scratch_cases.py is measured with 1 and 2 threads, with the
instructions that the processor has and with fewer (oneDNN and ATen choose their kernels by them), in processes of
their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

FILE = Path(__file__).with_suffix(".json")
# What the environment calls fewer instructions; the first: all there are.
INSTRUCTIONS = (
    {},
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
)
THREADS = (1, 2)


def name(threads: int) -> str:
    """The name of the column that this process measures."""
    import torch

    capability = os.environ.get("ONEDNN_MAX_CPU_ISA") or torch.backends.cpu.get_cpu_capability()
    amx = not os.environ.get("ONEDNN_MAX_CPU_ISA") and "amx_tile" in Path("/proc/cpuinfo").read_text()
    return f"{threads} threads, {capability}{' with AMX' if amx else ''}, torch {torch.__version__.split('+')[0]}"


def measure() -> dict[str, int | str]:
    """Bytes of scratch by the call's text, measured in this process; a reason where a call could not be measured."""
    from memgraph.facts.kernel_scratch import trial
    from tests.support.scratch_cases import cases

    found: dict[str, int | str] = {}
    for case in cases():
        try:
            found[str(case)] = trial.measure(case)
        except trial.NotTried as problem:
            found[str(case)] = str(problem)
    return found


def column() -> dict[str, dict[str, int | str]]:
    """The column that this process measures, by its name."""
    import torch

    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    return {name(threads): measure()}


def columns(python: str) -> dict[str, dict[str, int | str]]:
    """The columns that one interpreter measures, with more and fewer instructions and threads."""
    found: dict[str, dict[str, int | str]] = {}
    for instructions in INSTRUCTIONS:
        for threads in THREADS:
            environment = {**os.environ, **instructions, "OMP_NUM_THREADS": str(threads)}
            made = subprocess.run(
                [python, "-m", "tests.support.scratch_table", "--column"],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                cwd=ROOT,
            )
            found |= json.loads(made.stdout)
            print(*found, sep="\n", file=sys.stderr)
    return found


def write(measured: dict[str, dict[str, int | str]]) -> None:
    texts = list(dict.fromkeys(text for made in measured.values() for text in made))
    rows = [json.dumps([text, [made.get(text) for made in measured.values()]]) for text in texts]
    body = ",\n".join(rows)
    FILE.write_text(f'{{"columns": {json.dumps(list(measured))},\n"rows": [\n{body}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("--python", action="append", default=[], help="another interpreter, with another torch")
    parser.add_argument("--join", nargs="+", help="write the table of what --column printed, here or elsewhere")
    options = parser.parse_args()
    if options.column:
        json.dump(column(), sys.stdout)
        return
    measured: dict[str, dict[str, int | str]] = {}
    if options.join:
        for file in options.join:
            measured |= json.loads(Path(file).read_text())
    else:
        for python in (sys.executable, *options.python):
            measured |= columns(python)
    write(measured)


if __name__ == "__main__":
    main()
