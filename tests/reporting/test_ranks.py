"""The reports of several ranks beside each other."""

import dataclasses

import pytest

from memgraph.reporting import page
from memgraph.reporting.ranks import RankReports
from tests.reporting.test_page import read
from tests.reporting.test_report import example
from tests.reporting.test_step_report import example as step_example

MIB = 1024**2


def of_rank(rank, above=0, **changes):
    """A report of a budget of 200 MiB, 10 of them held back, that peaks at 162 MiB and more."""
    peak = (162 + above) * MIB
    return dataclasses.replace(example(), rank=rank, predicted_peak=peak, **changes)


def test_the_rank_with_the_least_room_is_the_tightest():
    found = RankReports.of([of_rank(1, above=5), of_rank(0), of_rank(2, above=9, budget=400 * MIB)])
    assert [rank.name for rank in found.ranks] == ["rank 0", "rank 1", "rank 2"]
    assert [rank.spare for rank in found.ranks] == [28 * MIB, 23 * MIB, 219 * MIB]
    assert found.tightest.name == "rank 1"
    assert found.summary == "rank 1 is the tightest: 167.0 MiB, 23.0 MiB to spare"
    lines = str(found).splitlines()
    assert "rank 1 *" in lines[-2] and "167.0 MiB" in lines[-2] and "*" not in lines[-1]


def test_a_measured_peak_above_the_predicted_one_counts():
    measured = of_rank(0, measured_above=145 * MIB)
    found = RankReports.of([measured, of_rank(1)])
    assert found.tightest.name == "rank 0" and found.tightest.peak == measured.level + 145 * MIB
    assert found.summary == "rank 0 is the tightest: 195.0 MiB, 5.0 MiB OVER its budget"


def test_without_a_budget_the_highest_peak_counts():
    found = RankReports.of([of_rank(0), of_rank(1, above=1, budget=None)])
    assert found.tightest.name == "rank 1" and found.summary == "rank 1 has the highest peak: 163.0 MiB"


def test_names_tell_the_reports_apart():
    reports = [of_rank(None), of_rank(0), of_rank(0, graph="other [0]"), step_example(rank=1), of_rank(None)]
    names = [rank.name for rank in RankReports.of(reports).ranks]
    assert names == ["rank 0: loss_fn [0]", "rank 0: other [0]", "rank 1", "report 4", "report 5"]


def test_the_page_has_a_tab_for_each_rank():
    step = step_example(rank=1, parts=(example(), dataclasses.replace(example(), graph="loss [0]")))
    found = RankReports.of([of_rank(0), step])
    data = read(page.document(found.views()))
    assert [(view["kind"], view["name"], view.get("under")) for view in data["views"]] == [
        ("ranks", "all ranks", None),
        ("graph", "rank 0", None),
        ("step", "rank 1", None),
        ("graph", "loss_fn [0]", 2),
        ("graph", "loss [0]", 2),
    ]
    rows = data["views"][0]["ranks"]
    assert [row["view"] for row in rows] == [1, 2] and [row["tightest"] for row in rows] == [False, True]
    assert (rows[0]["predicted"], rows[1]["measured"]) == (162 * MIB, step.measured_peak)
    assert data["views"][2]["step"]["views"] == {"loss_fn [0]": 3, "loss [0]": 4}


@pytest.mark.parametrize("report", [of_rank(3), step_example(rank=3)], ids=["graph", "step"])
def test_json_keeps_the_rank(report):
    assert type(report).from_json(report.to_json()) == report and report.rank == 3
    old = report.to_json().replace('"rank":3,', "")
    assert type(report).from_json(old).rank is None
