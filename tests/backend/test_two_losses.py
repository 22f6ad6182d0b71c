"""Two losses of one step: nobody knows at the first one that another comes after it."""

import gc

import pytest
import torch
from torch import nn

import memgraph
from memgraph.backend.records import Followed
from memgraph.machine.measure import allocated_bytes, peak_above_start
from memgraph.step import run
from tests.support.interpreted import backend
from tests.support.models.blocks import Residual

WIDTH, TOKENS = 32, 512


@pytest.fixture
def nobody_knows(monkeypatch):
    """A process that has seen no step with two losses."""
    monkeypatch.setattr(run.current(), "followed", set())


def peaks(blocks, compiled, tokens=TOKENS):
    """Of three steps, in bytes above their start."""
    torch._dynamo.reset()
    gc.collect()
    first = compiled(lambda x: blocks(x).square().mean())
    second = compiled(lambda x: blocks(x).square().mean().sqrt())
    x = torch.randn(tokens, WIDTH)

    def step():
        (first(x) + second(x)).backward()
        blocks.zero_grad()

    return [peak_above_start(step) for _ in range(3)]


@pytest.mark.slow
def test_the_first_loss_leaves_room_once_the_second_was_refused_for_it(nobody_knows):
    """The refusal says that less may do, and it does: the same budget is kept when the step is compiled again."""
    blocks = nn.Sequential(*(Residual(WIDTH, 4 * WIDTH) for _ in range(3)))
    room = max(peaks(blocks, lambda fn: fn)) // 2
    budget = allocated_bytes("cpu") + room
    planned = backend(budget=budget)
    with pytest.raises(memgraph.BudgetError) as refused:
        peaks(blocks, lambda fn: torch.compile(fn, backend=planned))
    assert "planned as if nothing came after it" in str(refused.value)
    assert "the smallest that can is about" in str(refused.value) and len(refused.value.guesses) == 1
    refused = None  # its traceback holds the step
    again = peaks(blocks, lambda fn: torch.compile(fn, backend=planned))
    assert max(again) <= room


def test_a_loss_that_is_followed_is_known_by_what_it_does_and_in_other_processes():
    known = Followed("a-key-of-this-test", "its operators", cache=True)
    assert not known.known(set()) and known.known({"its operators"})
    here = set()
    known.remember(here)
    assert here == {"its operators"}
    assert known.known(set())  # another process finds it in the plan store
    assert not Followed("a-key-of-this-test", "its operators", cache=False).known(set())
    assert not Followed("another-key", "other operators", cache=True).known(here)
