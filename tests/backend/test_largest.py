"""The search for the largest size, against asking every size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgraph.backend.explore import Answer
from memgraph.backend.largest import largest

MOST = 4096


class Budget:
    """Answers as a step would whose lowest peak is `peak(size)`, under a budget of 1000."""

    def __init__(self, peak):
        self.peak, self.asked = peak, []

    def __call__(self, size):
        self.asked.append(size)
        excess = max(0, self.peak(size) - 1000)
        return Answer(size, excess == 0, excess, above=1000)

    def every(self, step):
        return max((n for n in range(step, MOST + 1, step) if self.peak(n) <= 1000), default=None)


PEAKS = [
    lambda size: size,
    lambda size: 700 + size // 3,
    lambda size: 900 + size // 100,
    lambda size: size * size // 64,
    lambda size: 999 if size < 777 else 5000,
    lambda size: 10,
    lambda size: 5000,
    lambda size: 1001 if size > 1 else 1000,
]


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize("step", [1, 7, 128])
@pytest.mark.parametrize("start", [1, 640, 5000])
def test_as_if_every_size_was_asked(peak, step, start):
    budget = Budget(peak)
    found = largest(budget, start=start, step=step, most=MOST)
    assert found.size == budget.every(step)
    if found.size is not None:
        assert found.size % step == 0 and budget.peak(found.size) <= 1000
    if found.refused is None:
        assert found.size == MOST // step * step
    else:
        assert found.refused.size == (found.size or 0) + step and not found.refused.fits
    assert [answer.size for answer in found.asked] == budget.asked
    assert len(set(budget.asked)) == len(budget.asked) <= 24  # each question costs a plan


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1500), st.fractions(min_value="1/100", max_value=3), st.integers(1, 64), st.integers(1, 4096))
def test_a_line_takes_few_questions(fixed, slope, step, start):
    budget = Budget(lambda size: fixed + int(slope * size))
    found = largest(budget, start=start, step=step, most=MOST)
    assert found.size == budget.every(step)
    assert len(found.asked) <= 26
