"""The reports of a process: kept, and put into torch's structured trace where somebody traces."""

import json
import logging
import os
import subprocess
import sys

import pytest

from memgraph.reporting import log
from memgraph.reporting.report import Report
from tests.reporting.test_report import example
from tests.support import ROOT
from tests.support.reports import synthetic

TRACE = logging.getLogger("torch.__trace")


class Kept(logging.Handler):
    """Keeps what the structured trace is given."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        if "artifact" in record.metadata:
            self.records.append((record.metadata["artifact"], record.payload))


@pytest.fixture
def traced():
    """The artifacts that the structured trace of this process is given."""
    handler = Kept()
    TRACE.addHandler(handler)
    yield handler.records
    TRACE.removeHandler(handler)


@pytest.mark.parametrize("report", [example(), synthetic(3, 40)], ids=["example", "synthetic"])
def test_a_report_is_an_artifact_of_the_trace(report, traced):
    log.record(report)
    assert log.report() is report
    ((artifact, payload),) = traced
    assert artifact == {"name": log.ARTIFACT, "encoding": "json"}
    assert Report.from_json(payload) == report


def test_without_a_trace_nothing_is_made_for_it(monkeypatch):
    class Counted(Report):
        """A report that nobody may write."""

        def to_json(self):
            raise AssertionError("the report was written for a trace that nobody keeps")

    monkeypatch.setattr(TRACE, "handlers", [])  # pytest has handlers on every logger that hands nothing on
    log.record(Counted(**vars(example())))


PROGRAM = """
import torch
from torch import nn
import memgraph

with torch.device("meta"):
    model, x = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))), torch.empty(256, 64)
report = memgraph.plan(lambda x: model(x).square().mean(), x, options={"budget": 0.7}, device="cpu")
print(report.to_json())
"""


@pytest.mark.slow
def test_torch_trace_has_a_plan_that_memgraph_report_reads(tmp_path):
    environment = os.environ | {"TORCH_TRACE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    (place,) = [n for n, line in enumerate(lines) if f'"name": "{log.ARTIFACT}"' in line]
    payload = []
    for line in lines[place + 1 :]:
        if not line.startswith("\t"):
            break
        payload.append(line)
    assert Report.from_json("\n".join(payload)) == Report.from_json(done.stdout)
    assert json.loads("\n".join(payload))["plan"]["kind"] == "memgraph plan"
