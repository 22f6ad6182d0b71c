"""Reports of past processes at a terminal."""

import dataclasses
import json
import pickle

import pytest
from typer.testing import CliRunner

from memgraph.backend.budget import Bound
from memgraph.backend.records import Accepted, stored
from memgraph.base.store import Store
from memgraph.cli.app import app
from tests.reporting.test_page import read
from tests.reporting.test_plan_diff import plan as plan_of
from tests.reporting.test_report import example
from tests.reporting.test_step_report import example as step_example


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "60")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def keep(key, graph="loss_fn [0]"):
    report = dataclasses.replace(example(), key=key, graph=graph)
    Store().put(key, Accepted(Bound(), report, {}).to_record())
    return report


def test_reports_of_past_processes_are_listed_whole():
    assert "no plan is kept yet" in run("reports").output
    keep("a" * 64, "first_fn [0]")
    keep("b" * 64, "second_fn [0]")
    Store().put("c" * 64, {"report": "{}"})  # of another version
    Store().put("d" * 64, {"above": 3})  # no report
    result = run("reports")
    assert result.exit_code == 0, result.output
    listed = [line for line in result.output.splitlines() if "_fn [0]" in line]
    assert sorted(line.split()[1] for line in listed) == ["a" * 12, "b" * 12]
    assert all("162.0 MiB" in line and "+7.0%" in line for line in listed)
    assert len([line for line in run("reports", "--most", 1).output.splitlines() if "_fn [0]" in line]) == 1


def test_listing_does_not_change_what_is_kept_longest():
    keep("a" * 64)
    before = Store().entries()
    assert [item.key for item in stored()] == ["a" * 64]
    assert Store().entries() == before


def test_a_report_is_shown_again_by_the_beginning_of_its_key(tmp_path):
    kept = keep("abc1" + "0" * 60)
    keep("abd1" + "0" * 60)
    written = ["--html", tmp_path / "r.html", "--json", tmp_path / "r.json", "--snapshot", tmp_path / "r.pickle"]
    result = run("report", "abc", *written)
    assert result.exit_code == 0, result.output
    assert pickle.loads((tmp_path / "r.pickle").read_bytes())["segments"]
    assert str(kept) in result.output and json.loads((tmp_path / "r.json").read_text())["key"] == kept.key
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert kept.details() in run("report", "abc", "--details").output


def test_a_report_is_shown_from_a_file(tmp_path):
    (tmp_path / "r.json").write_text(example().to_json())
    assert str(example()) in run("report", tmp_path / "r.json").output
    (tmp_path / "step.json").write_text(step_example(parts=(example(),)).to_json())
    result = run("report", tmp_path / "step.json", "--html", tmp_path / "step.html")
    assert result.exit_code == 0 and (tmp_path / "step.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["nothing"], 2, "begins with 'nothing'"),
        (["ab"], 2, "several reports"),
        (["{}/missing.json"], 2, "cannot be read"),
        (["{}/other.json"], 2, "has no report"),
        (["{}/step.json", "--plot", "{}/p.png"], 2, "there is no --plot here; allowed: --json, --html"),
        (["{}/step.json", "--snapshot", "{}/s.pickle"], 2, "there is no --snapshot here; allowed: --json, --html"),
        (["abc", "--snapshot", "{}/no/s.pickle"], 1, "cannot be made"),
        (["abc", "--html", "{}/no/r.html"], 1, "cannot be made"),
    ],
)
def test_what_is_refused_is_one_line_and_a_code(tmp_path, arguments, code, says):
    keep("abc1" + "0" * 60)
    keep("abd1" + "0" * 60)
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "step.json").write_text(step_example().to_json())
    result = run("report", *[text.replace("{}", str(tmp_path)) for text in arguments])
    assert result.exit_code == code and says in result.output, result.output
    assert "Traceback" not in result.output and not result.output.startswith("memgraph:")  # nothing is shown before


def test_a_report_explains_a_module(tmp_path):
    keep("abc1" + "0" * 60)
    result = run("report", "abc", "--explain", "model.layers.0")
    assert result.exit_code == 0, result.output
    assert "memgraph: model.layers.0 in loss_fn [0]" in result.output
    result = run("report", "abc", "--explain", "model.layer.0")
    assert result.exit_code == 2 and "near: 'model.layers.0'" in result.output


def test_a_plan_is_written_from_a_report_and_compared(tmp_path):
    kept = keep("abc1" + "0" * 60)
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert run("report", "abc", "--plan", first).exit_code == 2 and not first.exists()  # of an earlier version
    plan_of([d for d in kept.decisions]).save(second)
    Store().put("abd", Accepted(Bound(), dataclasses.replace(kept, plan=plan_of([])), {}).to_record())
    assert run("report", "abd", "--plan", first).exit_code == 0
    result = run("diff", first, second)
    assert result.exit_code == 0, result.output
    assert "memgraph: two plans" in result.output and "not held" in result.output
    result = run("diff", first, tmp_path / "none.json")
    assert result.exit_code == 2 and "there is no such file" in result.output


def test_two_reports_are_compared_in_a_page(tmp_path):
    decisions = list(example().decisions)
    one = dataclasses.replace(example(), key="abc", plan=plan_of(decisions))
    two = dataclasses.replace(example(), plan=plan_of(decisions[1:]), graph="loss_fn [1]")
    Store().put("abc", Accepted(Bound(), one, {}).to_record())
    (tmp_path / "two.json").write_text(two.to_json())
    result = run("diff", "ab", tmp_path / "two.json", "--html", tmp_path / "diff.html")
    assert result.exit_code == 0 and "not held" in result.output, result.output
    data = read((tmp_path / "diff.html").read_text())
    assert [view["name"] for view in data["views"]] == [
        "the difference",
        "first: loss_fn [0]",
        "second: loss_fn [1]",
    ]
    one.plan.save(tmp_path / "plan.json")
    result = run("diff", tmp_path / "plan.json", tmp_path / "two.json", "--html", tmp_path / "plans.html")
    assert result.exit_code == 0
    assert read((tmp_path / "plans.html").read_text())["views"][0]["diff"]["missing"] == ["first"]


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["abc", "nothing"], 2, "begins with 'nothing'"),
        (["abc", "{}/other.json"], 2, "it is no plan of memgraph's"),
        (["abc", "{}/report.json"], 2, "has no plan"),
        (["abc", "abc", "--html", "{}/no/r.html"], 1, "cannot be made"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_a_code(tmp_path, arguments, code, says):
    report = dataclasses.replace(example(), plan=plan_of(list(example().decisions)))
    Store().put("abc", Accepted(Bound(), report, {}).to_record())
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "report.json").write_text(example().to_json())
    result = run("diff", *[text.replace("{}", str(tmp_path)) for text in arguments])
    assert result.exit_code == code and says in result.output, result.output
    assert "Traceback" not in result.output and len(result.output.splitlines()) == 1


def test_several_ranks_are_one_table_and_one_page(tmp_path):
    keep("abc1" + "0" * 60)
    for rank in range(2):
        report = dataclasses.replace(example(), rank=rank, predicted_peak=example().predicted_peak + rank)
        (tmp_path / f"{rank}.json").write_text(report.to_json())
    files = [tmp_path / "1.json", tmp_path / "0.json"]
    result = run("report", *files, "abc", "--html", tmp_path / "ranks.html")
    assert result.exit_code == 0, result.output
    assert "memgraph: 3 ranks" in result.output and "rank 1 is the tightest" in result.output
    data = read((tmp_path / "ranks.html").read_text())
    assert [view["name"] for view in data["views"]] == ["all ranks", "rank 0", "rank 1", "report 3"]
    result = run("report", *files, "--json", tmp_path / "both.json")
    assert result.exit_code == 2 and "allowed beside others: one KEY" in result.output
    assert run("report", *files, tmp_path / "none.json").exit_code == 2
