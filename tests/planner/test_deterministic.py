"""Two processes plan alike: ranks of one job must agree, and a cached plan must be the one that would be made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

SCRIPT = """
import hashlib
import torch
from tests.support import models
from tests.support.harness import Eager

def told(name, fraction, **options):
    module, inputs = models.build(name)
    torch._dynamo.reset()
    backend = Eager(fraction, **options)
    texts = []
    def partition(joint, joint_inputs, **arguments):
        parts = Eager.partition(backend, joint, joint_inputs, **arguments)
        texts.extend(part.code for part in parts)
        texts.append(str(backend.planned[-1].plan.decisions))
        texts.append(str(backend.planned[-1].refusals))
        return parts
    backend.partition = partition
    torch.compile(module, backend=backend)(**inputs)
    return hashlib.sha256("".join(texts).encode()).hexdigest()

print(told("t5", 0.6, tile=True))
"""


@pytest.mark.slow
def test_hash_seeds_change_no_plan():
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.add(done.stdout)
    assert len(found) == 1, found
