"""Kinds of training under several budgets: what is requested is as predicted, and budgets are kept."""

from __future__ import annotations

import pytest

from tests.simulated.matrix import CASES, rows
from tests.simulated.training import check


@pytest.mark.parametrize("name", CASES)
def test_training(name):
    for row in rows(name):
        if row.trained is not None:
            check(row.trained)
    assert row.trained is not None, "the budget that a refusal names is refused"
