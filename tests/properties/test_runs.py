"""Random programs keep their budgets: a few of those that `python -m tests.properties.random_runs` tries."""

import pytest

from tests.properties import random_runs


@pytest.mark.slow
def test_random_programs_keep_their_budgets():
    assert random_runs.main(examples=3, seed=1) == 0
