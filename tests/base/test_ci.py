"""What a change is checked with, on machines that cannot run all of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def simulated(told: str, base: Path, **variables: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"CUDA_BASE": str(base), "SIMULATED": told} | variables
    environment.pop("MAKEFLAGS", None)  # what `make test PYTHON=...` was given is for that make alone
    return subprocess.run([ROOT / ".ci/simulated"], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("told, code, why", [
    ("", 0, ["SIMULATED=fetch"]), *((told, code, ["could not be fetched", "MiB are free"])
                                    for told, code in (("fetch", 0), ("required", 1)))
])  # fmt: skip
def test_a_machine_without_the_cuda_build_says_so(tmp_path, told, code, why):
    done = simulated(told, tmp_path / "cuda", PYTHON="/bin/false")
    assert done.returncode == code, done.stderr
    said = done.stdout.splitlines()[-1]
    assert said.startswith("NOT RUN: the tests on the simulated GPU.") and any(words in said for words in why)


@pytest.mark.parametrize("told, target", [("", "test-simulated LANE=smoke"), ("required", "test-simulated")])
def test_where_the_cuda_build_is_some_minutes_of_it_are_run_or_all(tmp_path, told, target):
    (tmp_path / ".ready").touch()
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n[ "$2" = cuda-base ] && echo "{tmp_path}" || echo "made: $*"\n')
    make.chmod(0o755)
    done = simulated(told, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"made: {target}"
