"""Does every family of the zoo train under a budget with the right gradients?  Writes docs/models.md.

    python -m benchmarks.zoo                            all families that are not measured yet
    python -m benchmarks.zoo --only llama,wan --jobs 2
    python -m benchmarks.zoo --again                    all, whatever was measured before

Each family runs in a process of its own, under a time limit (tests/families/trial.py says what is done), and leaves a
JSON file in the output folder. A run that was cut short goes on where it ended; what another version of memgraph, of
torch or of the zoo has measured is measured again. Exit status 1 where something is wrong.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine, zoo_page
from benchmarks.harness import Process, Result
from tests.families import FAMILIES, Family

TESTS = machine.ROOT / "tests"
OUT = machine.ROOT / "out" / "zoo"
PAGE = machine.ROOT / "docs" / "models.md"


def main(
    only: Annotated[str, typer.Option(help="Which families, separated by commas.")] = ",".join(FAMILIES),
    jobs: Annotated[int, typer.Option(help="How many at once.")] = 1,
    limit: Annotated[int, typer.Option(help="Seconds that one family may take.")] = 3600,
    out: Annotated[Path, typer.Option(help="The folder of what was measured.")] = OUT,
    page: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
    again: Annotated[bool, typer.Option(help="Measure also what was measured before.")] = False,
    write_only: Annotated[bool, typer.Option(help="Measure nothing: write the page of what there is.")] = False,
) -> None:
    """Measure, and write the page after every family."""
    chosen = [_known(name) for name in only.split(",")]
    out.mkdir(parents=True, exist_ok=True)
    versions = {family.name: _version(family) for family in chosen}
    writing = threading.Lock()

    def one(family: Family) -> None:
        if not write_only and (again or _kept(out, family, versions[family.name]) is None):
            _measure(family, out, limit, versions[family.name])
        with writing:
            page.write_text(zoo_page.page(_results(out)))

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(one, chosen):
            pass
    results = {name: result for name, result in _results(out).items() if name in {family.name for family in chosen}}
    for name, result in results.items():
        print(f"{name:20}{zoo_page.verdict(result)}")
    if not all(zoo_page.verdict(result).startswith(zoo_page.FINE) for result in results.values()):
        raise typer.Exit(1)


def _known(name: str) -> Family:
    if name not in FAMILIES:
        raise typer.BadParameter(f"no family {name!r}; there are: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _version(family: Family) -> str:
    """What a result depends on: the sources of memgraph, of the family and of its trial, and torch's version."""
    import torch

    from memgraph.base.fingerprint import source_fingerprint

    digest = hashlib.sha256(f"{source_fingerprint()} {torch.__version__}".encode())
    for name in ("__init__", "trial", "decoders", family.kind):  # hybrids and mixtures build on decoders
        digest.update((TESTS / "families" / f"{name}.py").read_bytes())
    return digest.hexdigest()


def _file(out: Path, family: Family) -> Path:
    return out / f"{family.name}.json"


def _kept(out: Path, family: Family, version: str) -> Result | None:
    """What was measured of `family` with this version, to the end."""
    try:
        result = json.loads(_file(out, family).read_text())
    except (OSError, ValueError):
        return None
    return result if result.get("complete") and result.get("version") == version else None


def _results(out: Path) -> dict[str, Result]:
    """All that the folder holds, in the order of the zoo; where a package is missing, that."""
    results = {}
    for family in FAMILIES.values():
        if _file(out, family).exists():
            result = json.loads(_file(out, family).read_text())
        elif family.missing:
            failure = f"not run: {family.needs} is not installed"
            result = {"family": family.name, "rows": [], "failure": failure}
        else:
            continue
        results[family.name] = result | {"kind": family.kind, "tolerance": family.tolerance, "why": family.why}
    return results


def _measure(family: Family, out: Path, limit: int, version: str) -> None:
    """Run one family; its file is whole after each row."""
    file = _file(out, family)
    if family.missing:
        return
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(out / "cache" / "inductor"),  # C++ kernels that families share; no graphs
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "MEMGRAPH_CACHE": str(out / "cache" / family.name),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    result: Result = {"family": family.name, "rows": [], "complete": False, "failure": ""}
    result |= {"version": version, "machine": machine.describe()}
    print(f"{family.name} ...", flush=True)
    start = time.perf_counter()
    with open(out / f"{family.name}.log", "w") as log:
        task = {"family": family.name}
        for row in Process("tests.families.trial:measure", task, log, environment).results(limit):
            if "column" in row:
                result["rows"].append(row)
            else:
                result["failure"] = row["failure"]
            result["seconds"] = time.perf_counter() - start
            _write(file, result)
    result["complete"] = not result["failure"].startswith("past")
    _write(file, result)
    print(f"{family.name:20}{zoo_page.verdict(result)}", flush=True)


def _write(file: Path, result: Result) -> None:
    aside = file.with_suffix(".part")
    aside.write_text(json.dumps(result, indent=1) + "\n")
    aside.replace(file)


if __name__ == "__main__":
    typer.run(main)
