"""Kinds of training under several budgets: what is requested is as predicted, and budgets are kept."""

from __future__ import annotations

import pytest

from tests.simulated.launches import Launched
from tests.simulated.matrix import CASES, rows
from tests.simulated.training import check


@pytest.mark.parametrize("name", CASES)
def test_training(name):
    found = list(rows(name))
    for row in found:
        if isinstance(row.trained, Launched):
            row.trained.check()
        elif row.trained is not None:
            check(row.trained)
    assert found[-1].trained is not None, "the budget that a refusal names is refused"
    for tier in CASES[name].offload:
        assert any(row.trained is not None and row.trained.report.bytes_on(tier) for row in found), tier
