"""Every example runs as a user runs it: the losses are those of eager training, and no step is above the budget.

The first one runs in `make test`, all of them in `make examples`: each compiles for about a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from memgraph.base.sizes import parse_size
from memgraph.cli.target import load_step
from tests.support import ROOT

pytest.importorskip("transformers")
SECONDS = 600  # of one example; on a quiet machine the longest takes a fifth
STEP = re.compile(r"^(?P<step>step .+?)  loss (?P<loss>[\d.]+)  peak (?P<peak>.+)$", re.MULTILINE)

# The steps that each prints, and how many of them it measures.
EXAMPLES = {
    "plain_loop": (8, 8),
    "trainer": (4, 4),
    "accelerate_loop": (6, 6),
    "peft_lora": (4, 4),
    "varying_lengths": (6, 6),
    "trl_sft": (4, 2),
    "ddp": (5, 3),
    "fsdp2_per_layer": (5, 3),
}
NEEDS = {"trainer": "accelerate", "accelerate_loop": "accelerate", "peft_lora": "peft", "trl_sft": "trl"}


def run(name: str, folder, *arguments: str) -> dict[str, tuple[float, str]]:
    """The loss and the peak that an example prints, by step."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {found["step"]: (float(found["loss"]), found["peak"]) for found in STEP.finditer(ended.stdout)}


def kept(peak: str) -> bool:
    """Whether a peak such as "7.4 MiB of 8MiB" is within its budget."""
    reached, _, budget = peak.partition(" of ")
    return parse_size(reached) <= parse_size(budget)


@pytest.mark.inductor
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    "name", [name if name == "plain_loop" else pytest.param(name, marks=pytest.mark.examples) for name in EXAMPLES]
)
def test_an_example_trains_as_eager_does_and_keeps_its_budget(name, tmp_path):
    pytest.importorskip(NEEDS.get(name, "torch"))
    if name in ("ddp", "fsdp2_per_layer") and not torch.distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    planned, eager = run(name, tmp_path), run(name, tmp_path, "--backend", "eager")
    steps, measured = EXAMPLES[name]
    assert len(planned) == steps and planned.keys() == eager.keys()
    for step, (loss, _) in planned.items():
        assert loss == pytest.approx(eager[step][0], abs=2e-4), step
    peaks = {step: peak for step, (_, peak) in planned.items() if peak != "not measured"}
    assert len(peaks) == measured
    assert not {step: peak for step, peak in peaks.items() if not kept(peak)}
    # Without a plan it would not be kept: the budget of the example means something.
    assert any(not kept(peak) for _, peak in eager.values() if peak != "not measured")


def test_every_example_is_run():
    scripts = {file.stem for file in (ROOT / "examples").glob("*.py")}
    assert scripts - {"train_llama", "llama_8b"} == set(EXAMPLES)  # tests/end_to_end has that one; for this see below


def test_the_model_that_is_planned_takes_no_memory():
    loss, (ids,) = load_step(f"{ROOT}/examples/llama_8b.py:step")
    assert ids.shape == (1, 8192) and ids.is_meta
    (model,) = (cell.cell_contents for cell in loss.__closure__)
    parameters = list(model.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    assert sum(parameter.numel() for parameter in parameters) == 8_030_261_248
