import pickle

import pytest

from memgraph.base.errors import (
    Binding,
    BudgetError,
    FullTier,
    MemgraphError,
    OffloadError,
    OptionsError,
    RanksError,
    VerifyError,
)

SMALL = Binding("mul_3", 1024)
LARGE = Binding("mm_1", 3 * 1024**3, "model.layers.0.mlp", "llama.py:42")


def test_budget_error_says_what_to_do():
    error = BudgetError(minimum=12 * 1024**3 + 1, binding=[SMALL, LARGE], budget=10 * 1024**3)
    assert error.minimum == 12 * 1024**3 + 1
    assert error.binding == (LARGE, SMALL)
    lines = str(error).splitlines()
    assert "10.0 GiB" in lines[0] and "12.0 GiB (12884901889 bytes)" in lines[0]
    assert lines[2].split() == ["3.0", "GiB", "mm_1", "model.layers.0.mlp", "llama.py:42"]
    assert lines[3].split() == ["1.0", "KiB", "mul_3"]


def test_budget_error_lists_the_largest_and_sums_up_the_rest():
    error = BudgetError(minimum=1, binding=[Binding(f"v{i}", 1024 * i) for i in range(1, 31)])
    message = str(error)
    assert len(error.binding) == 30
    assert "v30" in message and "v21" in message and "v20" not in message
    assert "210.0 KiB  in 20 more" in message


def test_budget_error_says_what_was_not_tried():
    refused = [("tile", "the number of tokens is symbolic")] * 12
    error = BudgetError(minimum=7, refusals=iter(refused), unused=("offload",))
    lines = str(error).splitlines()
    assert lines[1:3] == ["Asked for and not done:", "  tile: the number of tokens is symbolic"]
    assert lines[-2:] == ["  and 2 more", "Options that are off and may lower it: offload."]
    assert error.refusals == tuple(refused) and error.unused == ("offload",)


def test_budget_error_adds_up_its_minimum_before_it_lists_tensors():
    error = BudgetError(
        minimum=100 * 1024,
        budget=70 * 1024,
        baseline=60 * 1024,
        reserve=1024,
        binding=[SMALL],
        full=[FullTier("nvme", 4096, 9216, "/scratch", "its limit is 4.0 KiB")],
    )
    lines = str(error).splitlines()
    sums = "60.0 KiB are allocated when the step starts (the baseline), 1.0 KiB are held back (the reserve), 39.0 KiB"
    assert sums in lines[1]
    tier = "The tier 'nvme' in /scratch has room for 4.0 KiB (4096 bytes) only, and the values that may go there need "
    assert lines[2] == tier + "9.0 KiB: its limit is 4.0 KiB."
    assert lines[3] == "Live at its peak:"


def test_budget_error_names_what_the_baseline_is_made_of_before_it_lists_tensors():
    kib = {"minimum": 100 * 1024, "budget": 70 * 1024, "baseline": 60 * 1024, "to_come": 2048, "binding": [SMALL]}
    text = str(BudgetError(**kib, states=16 * 1024, others=8 * 1024)).splitlines()[1]
    within = "60.0 KiB are allocated when the step starts (the baseline: 16.0 KiB of it state of the optimizer, "
    assert within + "8.0 KiB held by other graphs until their backward), 2.0 KiB are still to come" in text
    assert "(the baseline: 8.0 KiB held by other graphs until" in str(BudgetError(**kib, others=8 * 1024))
    assert "(the baseline: 16.0 KiB of it state of the optimizer)," in str(BudgetError(**kib, states=16 * 1024))
    grown = BudgetError(**kib, states=1, others=2).since_it_was_planned([("other tensors", 3)])
    assert (grown.states, grown.others, grown.grown) == (1, 2, (("other tensors", 3),))


def test_budget_error_about_a_reserve_or_a_baseline_that_takes_it_all():
    first = str(BudgetError(minimum=3 * 2**30, budget=2**30, reserve=2 * 2**30, baseline=0)).splitlines()[0]
    assert "2.0 GiB (2147483648 bytes) are held back alone (options 'reserve'" in first
    first = str(BudgetError(minimum=3 * 2**30, budget=2**30, reserve=2**20, baseline=2**30)).splitlines()[0]
    assert "allocated or held back before the step starts" in first


@pytest.mark.parametrize(
    "error",
    [
        BudgetError(minimum=7, baseline=3, reserve=2, full=[FullTier("host", 4096, 8192)], estimated=True),
        BudgetError(minimum=7, binding=(LARGE,), budget=5, refusals=[("tile", "no")], unused=["offload"]),
        BudgetError(minimum=7),
        VerifyError("recompute", ["a", "b"]),
        OptionsError("no"),
        OffloadError("short read"),
        RanksError("rank 1 has not answered"),
    ],
)
def test_survives_pickling(error):
    error.rank = 3
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.__dict__ == error.__dict__


def test_verify_error_names_the_pass_and_each_breach():
    error = VerifyError("partition", iter(["mm used before it is made", "an output changed its stride"]))
    assert error.pass_name == "partition"
    assert error.breaches == ("mm used before it is made", "an output changed its stride")
    assert all(text in str(error) for text in ("partition", *error.breaches))


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (OptionsError, ValueError),
        (BudgetError, RuntimeError),
        (OffloadError, RuntimeError),
        (RanksError, RuntimeError),
        (VerifyError, AssertionError),
    ],
)
def test_is_caught_as_the_builtin_and_as_ours(error, builtin):
    assert issubclass(error, builtin) and issubclass(error, MemgraphError)
