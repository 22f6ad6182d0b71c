"""What a change is checked with, on machines that cannot run all of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("told, code", [("", 0), ("required", 1)])
def test_a_machine_that_cannot_fetch_the_cuda_build_says_so(tmp_path, told, code):
    environment = os.environ | {"CUDA_BASE": str(tmp_path / "cuda"), "PYTHON": "/bin/false", "SIMULATED": told}
    done = subprocess.run([ROOT / ".ci/simulated"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1].startswith("NOT RUN: the tests on the simulated GPU.")
    assert "could not be fetched" in done.stdout or "MiB are free" in done.stdout
