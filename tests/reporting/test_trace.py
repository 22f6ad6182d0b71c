"""A report as a trace for Perfetto."""

import dataclasses
import json

from memgraph.planner.decisions import Doing, Timeline
from tests.reporting.test_report import example
from tests.support.reports import synthetic


def test_trace_counts_what_is_allocated(tmp_path):
    report = example()
    report.trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert "not a time" in trace["otherData"]["time axis"]
    for name, timeline, peak in (
        ("unplanned", report.unplanned_timeline, report.unplanned_peak),
        ("planned", report.timeline, report.predicted_peak),
    ):
        counters = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == name]
        assert [e["ts"] for e in counters] == list(range(len(timeline.events) + 1))
        counted = [e["args"]["bytes"] for e in counters]
        assert counted == [report.baseline, *(report.baseline + above for above in timeline.sums())]
        assert max(counted) == peak
    budget = [e for e in trace["traceEvents"] if e["name"] == "budget"]
    assert [e["args"]["bytes"] for e in budget] == [report.budget] * 2
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 2]
    phases = {e["name"]: (e["ts"], e["dur"]) for e in slices if e["name"] in ("forward", "backward")}
    assert phases == {"forward": (0, 5), "backward": (5, 5)}
    assert [e["args"]["bytes"] for e in slices if "bytes" in e["args"]] == [
        event.bytes for event in report.timeline.events
    ]


def test_a_trace_of_known_times_has_lanes_and_arrows(tmp_path):
    report = synthetic(4, 60)
    moved = [work for work in report.works if work.doing is Doing.COPY]
    back = [dataclasses.replace(work, lane="host back", start=work.start + 1, end=work.end + 1) for work in moved]
    report = dataclasses.replace(report, works=(*report.works, *back))
    report.trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["time axis"] == "predicted time"
    events = trace["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(lanes.values()) == {"compute", "host out", "host back"}
    slices = [e for e in events if e["ph"] == "X"]
    assert [(lanes[e["tid"]], e["name"], e["ts"]) for e in slices] == [
        (work.lane, work.name, round(work.start * 1e6, 3)) for work in report.works
    ]
    starts, ends = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert len(starts) == len(moved) and starts.keys() == ends.keys()
    for number, start in starts.items():
        for arrow in (start, ends[number]):  # an arrow begins and ends within a slice of its lane, of one value
            (inside,) = [e for e in slices if e["tid"] == arrow["tid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]]
            assert inside["name"] == report.works[number].name


def test_no_peak_is_lost_where_several_events_have_one_time(tmp_path):
    report = synthetic(4, 60)
    at_once = Timeline(tuple(dataclasses.replace(e, at=round(e.at, 5)) for e in report.timeline.events))
    report = dataclasses.replace(report, timeline=at_once)
    report.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    counted = [e for e in events if e["ph"] == "C" and e["name"] == "planned"]
    assert [e["ts"] for e in counted] == sorted(e["ts"] for e in counted)
    assert max(e["args"]["bytes"] for e in counted) == report.predicted_peak
    assert counted[-1]["args"]["bytes"] == report.level + report.timeline.sums()[-1]
    kinds = {e["name"] for e in events if e["ph"] == "C"} - {"planned", "unplanned", "budget"}
    assert {"planned: saved", "planned: gradients", "planned: recomputed", "planned: in flight"} <= kinds
