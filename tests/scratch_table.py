"""The table that holds memgraph's rules for scratch memory: what ATen's CPU kernels take, measured.

    python tests/scratch_table.py                         measure all again, with this interpreter
    python tests/scratch_table.py --python .venv215/bin/python   with others beside it, for other versions of torch

Writes tests/scratch_table.json. Every case of scratch_cases.py is measured with 1 and 2 threads, with the instructions
that the processor has and with fewer (oneDNN and ATen choose their kernels by them), in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
# What the environment calls fewer instructions; the first: all there are.
INSTRUCTIONS = (
    {},
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
)
THREADS = (1, 2)


def measure() -> dict[str, int | str]:
    """Scratch by the call's text, of this process; a text where a case was not measured."""
    import torch
    from scratch_cases import cases

    from memgraph.facts.scratch import trial

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    found: dict[str, int | str] = {}
    for case in cases():
        try:
            found[str(case)] = trial.measure(case)
        except trial.NotTried as problem:
            found[str(case)] = str(problem)
    return found


def columns(python: str) -> dict[str, dict[str, int | str]]:
    """What one interpreter measures, by "torch version, instructions, threads"."""
    version = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = {}
    for instructions in INSTRUCTIONS:
        for threads in THREADS:
            name = f"{version}, {instructions.get('ONEDNN_MAX_CPU_ISA', 'all instructions')}, {threads} threads"
            environment = {**os.environ, **instructions, "OMP_NUM_THREADS": str(threads)}
            made = subprocess.run([python, __file__, "--measure"], env=environment, stdout=subprocess.PIPE, check=True)
            found[name] = json.loads(made.stdout)
            print(name, len(found[name]), file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("--python", action="append", default=[], help="another interpreter, with another torch")
    options = parser.parse_args()
    if options.measure:
        json.dump(measure(), sys.stdout)
        return
    measured: dict[str, dict[str, int | str]] = {}
    for python in (sys.executable, *options.python):
        measured |= columns(python)
    names = list(measured)
    texts = list(dict.fromkeys(text for column in measured.values() for text in column))
    rows = [json.dumps([text, [measured[name].get(text) for name in names]]) for text in texts]
    body = ",\n".join(rows)
    FILE.write_text(f'{{"columns": {json.dumps(names)},\n"rows": [\n{body}\n]}}\n')


if __name__ == "__main__":
    main()
