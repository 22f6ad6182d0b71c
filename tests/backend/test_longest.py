"""The longest size by one capture, against planning every size from the start."""

import pytest
import torch
from torch import nn

import memgraph
from memgraph import BudgetError, MemgraphError, OptionsError
from memgraph.backend.capture import Target
from memgraph.backend.explore import KEPT, explored, size_of, with_dynamic
from memgraph.backend.options import parse_options
from memgraph.base.errors import GraphError

WIDTH, STEP = 32, 64


def make(rows):
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)]
        model = nn.Sequential(*layers)
        x = torch.empty(1, rows, WIDTH)
    return lambda x: model(x).square().mean(), x


def brute_force(options, step, most):
    """The largest multiple of `step` for which `memgraph.plan` finds a plan."""
    found = None
    for rows in range(step, most + 1, step):
        loss, x = make(rows)
        try:
            memgraph.plan(loss, x, options=options, device="cpu")
        except BudgetError:
            continue
        found = rows
    return found


@pytest.mark.parametrize(
    "levers, start, step",
    [
        pytest.param({}, 3 * STEP, STEP, marks=pytest.mark.slow),
        pytest.param({"recompute": False}, 12 * STEP, STEP, marks=pytest.mark.slow),
        pytest.param({"tile": {"mlp": "auto"}}, 5 * STEP, 3 * STEP, marks=pytest.mark.slow),
    ],
    ids=["recompute", "nothing", "tiles"],
)
def test_as_if_every_size_was_planned(levers, start, step):
    options = {"budget": "900KiB", **levers}
    loss, x = make(start)
    found = memgraph.longest(loss, x, options=options, device="cpu", step=step)
    assert found.size == brute_force(options, step, found.size + 2 * step)
    assert found.report.predicted_peak <= found.report.budget == 900 * 1024
    assert found.excess > 0 and found.size + step in {answer.size for answer in found.asked}
    loss, x = make(found.size)
    plain = memgraph.plan(loss, x, options=options, device="cpu")
    assert (plain.baseline, plain.unplanned_peak) == (found.report.baseline, found.report.unplanned_peak)


@pytest.mark.slow
def test_the_largest_batch_and_the_state_of_an_optimizer():
    loss, x = make(64)
    x = torch.empty(3, 64, WIDTH, device="meta")
    told = {"options": {"budget": "900KiB"}, "device": "cpu", "dim": 0, "step": 1}
    without = memgraph.longest(loss, x, **told)
    found = memgraph.longest(loss, x, optimizer="adamw", **told)
    assert 1 < found.size < without.size
    assert found.report.to_come >= 2 * (found.report.baseline - found.size * 64 * WIDTH * 4)
    assert str(found).startswith(f"longest: {found.size}")


def test_most_ends_the_search():
    loss, x = make(128)
    found = memgraph.longest(loss, x, options={"budget": "1GiB"}, device="cpu", step=STEP, most=1000)
    assert found.size == 960 and found.excess is None and len(found.asked) < 6


def test_the_arguments_of_the_caller_stay_as_they_are():
    x, y = torch.empty(2, 8, 4, requires_grad=True), torch.empty(2, 9)
    (again, same), _ = with_dynamic(((x, y), {}), 1)
    assert again is not x and again.requires_grad and same is y
    assert "_dynamo_weak_dynamic_indices" in vars(again)
    assert not any(name.startswith("_dynamo") for name in vars(x))
    assert size_of(((x, y), {}), 1) == 8 and size_of((3,), 0) is None


def test_what_is_refused():
    loss, x = make(64)
    with pytest.raises(MemgraphError, match="not even a size of 64 fits"):
        memgraph.longest(loss, x, options={"budget": "100KiB"}, device="cpu", step=64)
    for options, given, says in [
        ({"budget": 0.5}, {}, "bounds no size"),
        ({"budget": None}, {}, "bounds no size"),
        ({"budget": "1MiB"}, {"dim": 3}, "dimension 3"),
        ({"budget": "1MiB"}, {"step": 0}, "step 0"),
    ]:
        with pytest.raises(OptionsError, match=says):
            memgraph.longest(loss, x, options=options, device="cpu", **given)

    def of_one_size(x):
        return loss(x[:, : int(x.shape[1])]) if x.shape[1] == 64 else None

    with pytest.raises(GraphError, match="one of this size alone"):
        memgraph.longest(of_one_size, x, options={"budget": "1MiB"}, device="cpu")


def test_regions_that_are_as_long_at_one_size_alone_are_two_kinds():
    """An encoder and a decoder: at 128 tokens both have as many."""
    with torch.device("meta"):
        towers = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(2)]
        x, y = torch.empty(1, 320, WIDTH), torch.empty(1, 128, WIDTH)

    def loss(x, y):
        return towers[0](x).square().mean() + towers[1](y).square().mean()

    options = {"budget": "64MiB", "tile": {"mlp": "auto"}}
    target = Target.of(parse_options(options), None, "cpu", None)
    answers = explored(loss, (x, y), {}, target, lambda explorer: [explorer.fits(n) for n in (64, 128, 192)], dim=1)
    assert all(answer.fits for answer in answers)


def test_a_search_keeps_what_it_knows_of_few_sizes():
    """The facts of a size take hundreds of megabytes for a large model."""
    loss, x = make(4 * STEP)
    kept = []

    def ask(explorer):
        for rows in range(STEP, 7 * STEP, STEP):
            explorer.fits(rows)
            kept.append(len(explorer._known))
        return [explorer.fits(6 * STEP), explorer.fits(STEP)]

    options = parse_options({"budget": "900KiB"})
    larger, smaller = explored(loss, (x,), {}, Target.of(options, None, "cpu"), ask, 1)
    assert kept == [1, *[KEPT] * 5]
    assert smaller.fits and (larger.size, smaller.size) == (6 * STEP, STEP)
