"""The page's data, held against the report that it was made of; and the page as a file."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
import zlib

import pytest

from memgraph.facts.actions import Offload, Recompute, Save
from memgraph.planner.decisions import Decision, Event, Reuse, Timeline, Where
from memgraph.reporting import page, page_data
from memgraph.reporting.frontier import Frontier, Point
from memgraph.reporting.lifetimes import Stuff, lifetimes
from memgraph.reporting.page_views import Views
from memgraph.reporting.report import Report
from memgraph.reporting.step_figures import OutsideFigures
from tests.reporting.test_report import EMPTY, example
from tests.reporting.test_step_report import example as step_example
from tests.support import ROOT
from tests.support.reports import synthetic

ASSETS = ROOT / "memgraph" / "reporting" / "assets"


def read(text: str):
    """The data that a page holds."""
    packed = re.search(r'<script id="data" type="text/plain">([^<]*)</script>', text)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def events_of(track):
    """The changes of a track, event by event, as the page's scripts add them up."""
    changes = [0] * track["events"]
    births = list(itertools.accumulate(track["birth"]))
    for birth, life, size in zip(births, track["life"], track["size"], strict=True):
        changes[birth] += track["sizes"][size]
        if life:
            changes[birth + life] -= track["sizes"][size]
    return changes


@pytest.mark.parametrize("report", [example(), EMPTY, synthetic(3, 50)], ids=["example", "empty", "synthetic"])
def test_the_page_has_the_events_of_the_report(report, tmp_path):
    report.html(tmp_path / "report.html")
    data = read((tmp_path / "report.html").read_text())
    (part,) = data["parts"]
    assert data["version"] == page.VERSION and [view["kind"] for view in data["views"]] == ["graph"]
    assert data["views"][0]["summary"] == report.summary and part["frontier"] is None
    for name, timeline in (("planned", report.timeline), ("unplanned", report.unplanned_timeline)):
        track = part[name]
        assert events_of(track) == [event.bytes for event in timeline.events]
        assert track["forward"] == sum(event.phase == "forward" for event in timeline.events)
        times = list(itertools.accumulate(track["at"]))
        assert times == ([round(event.at * 1e9) for event in timeline.events] if timeline.timed else [])
        held = {part["texts"][place] for place in track["value"]}
        assert held == {event.value for event in timeline.events if event.bytes > 0}
    assert sum(size for _, size in part["standing"]) == part["level"] == report.level
    for name in ("budget", "baseline", "unplanned_peak", "predicted_peak", "measured_peak", "predicted_time"):
        assert part[name] == getattr(report, name)


def test_the_model_has_all_bytes_of_the_decisions():
    report = synthetic(4, 60)
    (part,) = read(page.document(Views.of_graph(report)))["parts"]
    for key, kind in (("kept", Save), ("dropped", Recompute), ("host", Offload)):
        wanted = sum(d.bytes for d in report.decisions if isinstance(d.action, kind))
        assert sum(group[key] for group in part["model"]) == wanted > 0
        assert sum(some[key] for group in part["model"] for some in group["parts"]) == wanted
    rows = sorted(i for group in part["model"] for some in group["parts"] for i in some["decisions"])
    assert rows == list(range(len(report.decisions)))
    decisions, texts = part["decisions"], part["texts"]
    for i, decision in enumerate(report.decisions):
        assert texts[decisions["name"][i]] == decision.name and texts[decisions["action"][i]] == str(decision.action)
        others = tuple((texts[action], seconds) for action, seconds in decisions["others"][i])
        assert others == decision.alternatives
    known = {texts[place]: n for n, place in enumerate(part["values"]["name"])}
    for item in report.described:
        n = known[item.name]
        assert texts[part["values"]["type"][n]] == f"{item.dtype}{list(item.shape)}"
        assert list(itertools.accumulate(part["values"]["reads"][n])) == [round(at * 1e9) for at in item.reads]


def test_kinds_of_memory():
    def event(phase, value, size, where=Where.NAMED):
        return Event(phase, value, size, where)

    timeline = Timeline(
        (
            event("forward", "kept", 1),
            event("forward", "passing", 2),
            event("forward", "passing", -2),
            event("forward", "loss", 4),
            event("forward", "gone", 8),
            event("forward", "gone", -8),
            event("forward", "mm scratch#2", 16),
            event("forward", "mm scratch#2", -16),
            event("backward", "gone", 8, Where.BACKWARD),
            event("backward", "again", 32, Where.BACKWARD),
            event("backward", "buf7", 64),
            event("backward", "again", 64, Where.KERNEL),
            event("backward", "again", -64, Where.KERNEL),
            event("backward", "again", -32, Where.BACKWARD),
            event("backward", "kept", -1),
            event("backward", "tangent", -128),  # was never allocated here
        )
    )
    decisions = (
        Decision("gone", 8, Offload("host")),
        Decision("again", 32, Recompute()),
        Decision("kept", 1, Save()),
    )
    report = dataclasses.replace(example(), timeline=timeline, decisions=decisions, buffers=(("buf7", "weight"),))
    lives = lifetimes(timeline, report)
    assert [(b.value, b.bytes, b.birth, b.death, b.stuff) for b in lives.buffers] == [
        ("kept", 1, 0, 14, Stuff.SAVED),
        ("passing", 2, 1, 2, Stuff.TRANSIENT),
        ("loss", 4, 3, None, Stuff.OUTPUT),
        ("gone", 8, 4, 5, Stuff.IN_FLIGHT),
        ("mm scratch#2", 16, 6, 7, Stuff.SCRATCH),
        ("gone", 8, 8, None, Stuff.IN_FLIGHT),
        ("again", 32, 9, 13, Stuff.RECOMPUTED),
        ("weight", 64, 10, None, Stuff.GRADIENT),
        ("again", 64, 11, 12, Stuff.SCRATCH),
        ("tangent", -128, 15, None, Stuff.GRADIENT),
    ]
    rows = lives.sums()
    assert [sum(row[i] for row in rows.values()) for i in range(len(timeline.events))] == timeline.sums()


def test_a_storage_that_is_given_away_holds_one_value_after_the_other():
    """No byte changes where generated code reuses a buffer: one life ends, and the next one begins."""
    events = (
        Event("forward", "forward.buf0", 8, at=1.0),
        Event("forward", "forward.buf1", 8, at=2.0),
        Event("forward", "forward.buf1", -8, at=3.0),
        Event("backward", "forward.buf0", -8, at=5.0),
    )
    reuses = (
        Reuse(2, "forward.buf0", "kept", "forward"),
        Reuse(3, "forward.buf0", "kept_late"),
        Reuse(3, "gone", "nothing"),
    )
    decisions = (Decision("dropped", 8, Recompute()), Decision("kept", 8, Save()), Decision("kept_late", 8, Save()))
    timeline = Timeline(events, reuses)
    report = dataclasses.replace(
        example(), timeline=timeline, decisions=decisions, buffers=(("forward.buf0", "dropped"),), works=()
    )
    lives = lifetimes(timeline, report)
    assert [(b.value, b.birth, b.death, b.stuff) for b in lives.buffers] == [
        ("dropped", 0, 2, Stuff.TRANSIENT),
        ("forward.buf1", 1, 3, Stuff.TRANSIENT),
        ("kept", 2, 4, Stuff.SAVED),
        ("kept_late", 4, 6, Stuff.SAVED),
    ]
    assert lives.times == [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 5.0]
    sums = [sum(row[n] for row in lives.sums().values()) for n in range(7)]
    assert sums == [8, 16, 16, 8, 8, 8, 0]
    assert Report.from_json(report.to_json()) == report
    track = read(page.document(Views.of_graph(report)))["parts"][0]["planned"]
    assert list(itertools.accumulate(events_of(track))) == sums


def test_a_step_shows_its_graphs(tmp_path):
    parts = (dataclasses.replace(example(), graph="layer [0]"), dataclasses.replace(example(), graph="loss [0]"))
    report = step_example(parts=parts)
    report.html(tmp_path / "step.html")
    data = read((tmp_path / "step.html").read_text())
    assert [part["graph"] for part in data["parts"]] == ["layer [0]", "loss [0]"]
    assert [view["name"] for view in data["views"]] == ["the step", "layer [0]", "loss [0]"]
    assert data["views"][0]["summary"] == report.summary
    step = data["views"][0]["step"]
    assert step["views"] == {"layer [0]": 1, "loss [0]": 2} and step["budget"] == report.budget
    assert [launch["level"] for launch in step["launches"]] == [x.level for x in report.measured.launches]
    assert step["launches"][0]["measured"] == [34 * 2**20, 36 * 2**20]
    assert step["outside"][0][3] == report.outside[0].peak
    back = type(report).from_json(report.to_json())
    assert back == report and isinstance(back.parts[0], Report)


def curve(report, budgets=(300, 500, 700, 900)):
    """Plans for four budgets in MiB, a knee at the second one; nothing is known of the best for the last one."""
    slower = (1.4, 1.15, 1.1, 1.08)
    points = [
        Point(
            budget=budget * 2**20,
            peak=(budget - 10) * 2**20,
            seconds=report.unplanned_time * slower[n],
            least_seconds=None if n == len(budgets) - 1 else report.unplanned_time * (slower[n] - 0.03),
            recomputed=(900 - budget) * 2**20,
            offloaded=64 * 2**20 if n == 0 else 0,
            tiled=2 if n < 2 else 0,
        )
        for n, budget in enumerate(budgets)
    ]
    return Frontier("step [0]", "cuda:0", 2**20, 950 * 2**20, report.unplanned_time, 250 * 2**20, tuple(points))


@pytest.mark.parametrize("budget, here", [(500, 1), (640, 2), (None, 0), (5000, 3)])
def test_the_page_has_the_points_of_the_frontier(budget, here, tmp_path):
    report = dataclasses.replace(example(), reserve=0, budget=budget and budget * 2**20)
    found = curve(report)
    report.html(tmp_path / "report.html", frontier=found)
    data = read((tmp_path / "report.html").read_text())["parts"][0]["frontier"]
    assert data["here"] == here and data["least_peak"] == found.least_peak
    assert [found.points[place] for place in data["knees"]] == list(found.knees)
    for told, point in zip(data["points"], found.points, strict=True):
        assert {key: told[key] for key in vars(point)} == vars(point)
        assert told["slowdown"] == found.slowdown(point)
        assert (told["least_slowdown"] is None) == (point.least_seconds is None)
        assert told["least_slowdown"] is None or told["least_slowdown"] < told["slowdown"]
    assert data["plan"]["slowdown"] == pytest.approx(report.slowdown)
    assert data["plan"]["budget"] <= found.points[-1].budget


def test_what_runs_outside_stands_beside_the_graphs_that_it_ran_between(tmp_path):
    around = (
        OutsideFigures("forward of layer [0]", "forward of loss [0]", 36, 52),
        OutsideFigures("forward of layer [0]", "forward of layer [0]", 36, 50),
        OutsideFigures("forward of loss [0]", "backward of loss [0]", 36, 36),  # takes nothing
        OutsideFigures("backward of layer [0]", "forward of layer [0]", 20, 99),
    )
    marks = {graph: page_data.outside(around, graph) for graph in ("layer [0]", "loss [0]", "other [0]")}
    peaks = {graph: {mark["place"]: mark["peak"] for mark in found} for graph, found in marks.items()}
    assert peaks == {
        "layer [0]": {"begin": 99, "middle": 52, "end": 99},
        "loss [0]": {"begin": 52},
        "other [0]": {},
    }
    assert marks["loss [0]"] == [
        {"place": "begin", "after": "forward of layer [0]", "before": "forward of loss [0]", "level": 36, "peak": 52}
    ]
    assert read(page.document(Views.of_graph(example())))["parts"][0]["outside"] is None
    step_example(parts=(dataclasses.replace(example(), graph="loss [0]"),)).html(tmp_path / "step.html")
    (part,) = read((tmp_path / "step.html").read_text())["parts"]
    assert [(mark["place"], mark["peak"]) for mark in part["outside"]] == [("begin", 52 * 2**20)]


def test_the_page_needs_no_network_and_hides_no_name():
    name = "</script><b>&amp;"
    report = dataclasses.replace(example(), graph=name, notes=(name,))
    text = page.document(Views.of_graph(report))
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<title>memgraph: {shown} on cuda:0</title>" in text
    assert text.count("</script>") == 2 and "<!--" not in text
    assert read(text)["parts"][0]["notes"] == [name]


@pytest.mark.slow
def test_a_hundred_thousand_buffers_are_a_small_file():
    report = synthetic(200, 250)
    text = page.document(Views.of_graph(report))
    data = read(text)["parts"][0]["planned"]
    assert len(data["birth"]) >= 100_000 and len(text) < 5_000_000


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError):
        example().html(tmp_path / "no" / "report.html")


@pytest.mark.parametrize("file", sorted(ASSETS.iterdir()), ids=lambda file: file.name)
def test_assets_are_short_and_used(file):
    text = file.read_text()
    assert len(text.splitlines()) <= 400 and max(map(len, text.splitlines())) <= 125
    assert file.suffix != ".js" or file.stem in page.SCRIPTS
    for body in re.split(r"\n(?=(?:async )?function |class |  (?:get )?\w+\(.*\) \{$)", text, flags=re.MULTILINE):
        assert file.suffix != ".js" or len(body.splitlines()) <= 60, body.splitlines()[0]
