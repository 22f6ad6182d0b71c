"""Kinds of training under several budgets: what is requested is as predicted, and budgets are kept."""

from __future__ import annotations

import pytest
import torch

from memgraph.base import compat
from tests.simulated.launches import Launched
from tests.simulated.matrix import CASES, OLDER, SMOKE, rows
from tests.simulated.training import Trained, check


def cases():
    """All of them, with their marks."""
    newest = torch.__version__ >= (2, 13)
    for name in CASES:
        left_out = pytest.mark.skipif(not newest and name not in OLDER, reason="fewer cases with an older torch")
        yield pytest.param(name, marks=[left_out, *([pytest.mark.smoke] if name in SMOKE else [])])


@pytest.mark.parametrize("name", list(cases()))
def test_training(name):
    found = list(rows(name))
    # DDP on torch 2.15, where products take their workspace when they run: predicted too high, and not known why
    # (docs/decisions/0013). With TORCH_CUBLAS_WORKSPACE_CACHE=1 it is exact there as well.
    exact = compat.workspaces_are_kept() or CASES[name].way != "distributed"
    for row in found:
        if isinstance(row.trained, Launched):
            row.trained.check(exact=exact)
        elif row.trained is not None:
            check(row.trained)
    first, last = found[0].trained, found[-1].trained
    assert last is not None, "the budget that a refusal names is refused"
    if isinstance(last, Trained):
        assert last.predicted < first.predicted
    if "outline" in CASES[name].options:
        assert all(any("outlined: " in note for note in row.trained.report.notes) for row in found if row.trained)
    for tier in CASES[name].offload:
        assert any(row.trained is not None and row.trained.report.bytes_on(tier) for row in found), tier
