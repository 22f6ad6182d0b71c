"""Time against memory by one capture, against planning every budget from the start."""

import pytest
import torch
from torch import nn

import memgraph
from memgraph import OptionsError
from memgraph.base import compat
from memgraph.reporting.frontier import Frontier, Point

WIDTH = 32


def make(layers=6, rows=256):
    with torch.device("meta"):
        parts = [
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)
        ]
        model = nn.Sequential(*parts)
        x = torch.empty(1, rows, WIDTH)
    return lambda x: model(x).square().mean(), x


@pytest.fixture(scope="module")
def found():
    loss, x = make()
    return memgraph.frontier(loss, x, device="cpu", points=5)


@pytest.mark.slow
def test_a_larger_budget_is_kept_and_never_slower(found):
    assert len(found.points) == 5
    budgets = [point.budget for point in found.points]
    assert budgets == sorted(budgets) and budgets[0] == found.smallest
    for less, more in zip(found.points, found.points[1:], strict=False):
        assert less.seconds >= more.seconds
    assert all(point.peak <= point.budget for point in found.points)
    assert found.points[-1].peak <= found.unplanned_peak
    assert found.points[-1].seconds <= found.unplanned_time


def test_no_point_is_below_its_bound(found):
    assert found.least_peak <= found.points[0].peak
    for point in found.points:
        assert 0 < point.least_seconds <= point.seconds


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 2])
def test_as_if_the_budget_was_planned_for(found, place):
    loss, x = make()
    point = found.points[place]
    report = memgraph.plan(loss, x, options={"budget": point.budget}, device="cpu")
    assert report.predicted_peak == point.peak
    assert report.predicted_time == pytest.approx(point.seconds, rel=1e-9)
    assert report.least_time <= report.predicted_time and report.gap >= 0
    assert report.least_peak == pytest.approx(found.least_peak, rel=1e-3)
    assert "slower than any plan of this kind" in str(report)


@pytest.mark.slow
def test_the_budget_that_is_asked_for_is_a_point_too(found):
    loss, x = make()
    asked = (found.points[1].budget + found.points[2].budget) // 2
    more = memgraph.frontier(loss, x, options={"budget": asked, "reserve": 0}, device="cpu", points=5)
    assert [point.budget for point in more.points] == sorted([asked, *(point.budget for point in found.points)])
    for wide in ("1TiB", 1024):  # no plan of the curve keeps less, or needs more
        there = memgraph.frontier(loss, x, options={"budget": wide}, device="cpu", points=3)
        assert len(there.points) == 3


@pytest.mark.slow
@pytest.mark.skipif(not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU")
def test_levers_are_counted():
    loss, x = make()
    options = {"offload": {"host": True, "min_bytes": 1024}, "tile": True}
    moved = memgraph.frontier(loss, x, options=options, device="cuda", hardware="H100", points=3)
    kept = memgraph.frontier(loss, x, device="cuda", hardware="H100", points=3)
    assert moved.smallest <= kept.smallest
    assert any(point.offloaded or point.tiled for point in moved.points)
    assert all(point.recomputed for point in kept.points[:1])
    assert not any(point.offloaded or point.tiled for point in kept.points)


def test_a_given_plan_is_no_curve(tmp_path):
    loss, x = make()
    memgraph.plan(loss, x, options={"budget": None}, device="cpu").plan.save(tmp_path / "plan.json")
    with pytest.raises(OptionsError, match="plan of one budget"):
        memgraph.frontier(loss, x, options={"plan": str(tmp_path / "plan.json")}, device="cpu")


def test_one_point_is_no_curve():
    with pytest.raises(OptionsError, match="2 or more"):
        memgraph.frontier(*make(), points=1)


def curve(*pairs):
    points = tuple(Point(budget, budget - 1, seconds, seconds / 2, 0, 0, 0) for budget, seconds in pairs)
    return Frontier("step", "cpu", 10, points[-1].budget, points[-1].seconds, 5, points)


def test_knees_are_where_memory_gets_dear():
    found = curve((100, 9.0), (200, 3.0), (300, 2.5), (400, 2.0))
    assert [point.budget for point in found.knees] == [200]
    assert found.price(1) == pytest.approx(0.06) and found.price(0) == 0
    assert found.at(250).budget == 200 and found.at(99) is None
    assert "knees" in str(found) and "200 B *" in str(found)
    assert curve((100, 1.0), (200, 1.0)).knees == ()
    steps = curve((100, 9.0), (200, 3.0), (300, 2.9), (400, 2.9), (500, 2.8), (600, 2.8))
    assert [point.budget for point in steps.knees] == [200]  # before flat ground, but cheap: not 300, not 500


def test_json(found, tmp_path):
    assert Frontier.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="not a frontier"):
        Frontier.from_json('{"graph": "f"}')
    found.plot(tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000
