"""An exact plan asks for a simulated card, and what it puts there stays tied."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import memgraph
from memgraph.backend.exact import Exact, Phase
from memgraph.cli.app import app


def test_it_is_refused_where_there_is_no_simulated_card():
    with pytest.raises(memgraph.OptionsError, match="python -m memgraph.simulator"):
        memgraph.plan(nn.Linear(2, 2), torch.ones(2, 2), exact=True)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch can run on a simulated card")
def test_the_command_says_which_torch_it_needs():
    done = CliRunner().invoke(app, ["plan", "nowhere.py:step", "--exact"])
    assert done.exit_code == 2 and "torch===2.13.0" in done.output


def test_it_fits_where_every_phase_keeps_the_budget():
    phases = (Phase(1, "forward", 90, 100, 200), Phase(1, "optimizer", 100, 120, 200))
    assert Exact("card", 1000, 120, None, phases).fits and Exact("card", 1000, None, None, phases).fits
    assert not Exact("card", 1000, 119, None, phases).fits
    full = Exact("card", 1000, None, None, phases, "CUDA out of memory. Tried to allocate 2 GiB")
    assert not full.fits and "Tried to allocate" in str(full)


def test_it_says_what_is_reserved_for_nothing(monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    wasteful = Exact("card", 1000, None, None, (Phase(1, "forward", 90, 100, 103),))
    assert wasteful.unused == 3 and "expandable_segments:True saves most" in str(wasteful)
    assert "expandable" not in str(Exact("card", 1000, None, None, (Phase(1, "forward", 90, 100, 102),)))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert "expandable" not in str(wasteful)
