"""The benchmarks' harness: processes, arms in turn, and what is written."""

from __future__ import annotations

import json

import pytest

from benchmarks import harness, machine, table
from benchmarks.harness import Process
from tests.support import ROOT

TASKS = "tests.support.tasks"


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_results_come_as_they_are_made(tmp_path):
    with open(tmp_path / "log", "w+") as log:
        assert list(Process(f"{TASKS}:count", {"most": 3}, log).results()) == [{"number": n} for n in range(3)]
        log.seek(0)
        assert log.read().count("noise") == 3


def test_an_error_is_a_result():
    assert list(Process(f"{TASKS}:fail", {}).results()) == [{"number": 0}, {"failure": "ValueError: first line"}]


def test_the_end_of_a_process_is_a_failure():
    assert list(Process(f"{TASKS}:die", {}).results()) == [{"number": 0}, {"failure": "the process ended with 3"}]


@pytest.mark.slow
def test_a_process_past_its_limit_is_killed():
    assert list(Process(f"{TASKS}:sleep", {}).results(2)) == [{"number": 0}, {"failure": "past the limit of 2 s"}]


def test_arms_step_in_turn(tmp_path):
    order = tmp_path / "order"
    task = {"order": str(order), "seconds": 2.0}
    tasks = {name: task | {"arm": name} for name in ("a", "b", "c", "d")}
    tasks["b"] |= {"seconds": 3.0}
    tasks["c"] |= {"dies_at": 1}
    tasks["d"] |= {"refused": True}
    found = harness.compare(f"{TASKS}:arm", tasks, rounds=2, last_word="memory")
    assert order.read_text().splitlines() == "a step,b step,c step,a step,b step,a memory,b memory".split(",")
    assert found["a"] == {"arm": "a", "peak": 2.0, "seconds": [2.0, 2.0], "last": "memory"}
    assert found["c"]["seconds"] == [2.0] and found["c"]["failure"] == "the process ended with 1"
    assert found["d"] == {"arm": "d", "refused": 7, "seconds": []}
    assert harness.ratios(found["b"], found["a"]) == [1.5, 1.5]
    assert harness.median([]) is None


def test_arms_that_compile_side_by_side_step_in_turn(tmp_path):
    order, written = tmp_path / "order", []
    tasks = {name: {"order": str(order), "seconds": 1.0, "arm": name} for name in ("a", "b", "c")}

    def after_round(results):
        written.append({name: len(result["seconds"]) for name, result in results.items()})

    found = harness.compare(f"{TASKS}:arm", tasks, rounds=2, jobs=2, after_round=after_round)
    assert order.read_text().splitlines() == "a step,b step,c step,a step,b step,c step".split(",")
    assert list(found) == ["a", "b", "c"]
    assert written == [dict.fromkeys("abc", 1), dict.fromkeys("abc", 2)]
    assert harness.compiling_jobs("cpu") == 1 <= harness.compiling_jobs("cuda")


def test_a_record_says_where_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    record = harness.Record("tried")
    page = record.write("Title", {"rows": [1]}, "body")
    data = json.loads((record.folder / "results.json").read_text())
    assert data["rows"] == [1] and data["machine"]["torch"] in page
    assert page.startswith("# Title\n") and page.endswith("body\n") and (record.folder / "table.md").read_text() == page


def test_numbers_are_set_to_the_right():
    text = table.markdown(("arm", "peak", "kept"), [("a|b", "1.5", "yes"), ("c", "", "no")])
    assert text.splitlines() == [
        "| arm | peak | kept |",
        "| --- | ---: | --- |",
        "| a/b | 1.5 | yes |",
        "| c |  | no |",
    ]
    assert table.markdown(("arm", "peak"), []).splitlines() == ["| arm | peak |", "| --- | --- |"]
    assert (table.mib(3 << 19), table.mib(None), table.number(0.5)) == ("1.5", "", "0.500")
