"""A report as a memory snapshot, read by torch's own reader of snapshots."""

import dataclasses
import itertools
import json
import pickle

import pytest
from torch.cuda import _memory_viz

from memgraph.planner.decisions import Event, Reuse, Timeline
from memgraph.reporting.lifetimes import lifetimes
from memgraph.reporting.snapshot import PROTOCOL
from tests.reporting.test_report import EMPTY, example
from tests.support.reports import synthetic

REPORT = synthetic(4, 60)


def written(report, path):
    report.snapshot(path)
    return pickle.loads(path.read_bytes())


def sums(trace):
    """Allocated bytes after each entry of a trace; nothing is freed that does not live, and nothing overlaps."""
    live, total, found = {}, 0, []
    for entry in trace:
        if entry["action"] == "alloc":
            end = entry["addr"] + entry["size"]
            assert all(end <= start or start + size <= entry["addr"] for start, size in live.items())
            live[entry["addr"]] = entry["size"]
            total += entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
            total -= entry["size"]
        found.append(total)
    return found, live


@pytest.mark.parametrize("report", [REPORT, example(), EMPTY], ids=["synthetic", "untimed", "empty"])
def test_its_bytes_are_those_of_the_report(report, tmp_path):
    (trace,) = written(report, tmp_path / "s.pickle")["device_traces"]
    found, _ = sums(trace)
    assert max(found, default=0) == report.level + report.timeline.peak
    assert not report.timeline.events or max(found) == report.predicted_peak
    changes = [
        total for entry, total in zip(trace, found, strict=True) if entry["action"] in ("alloc", "free_completed")
    ]
    standing = sum(entry["action"] == "alloc" for entry in trace) - len(lifetimes(report.timeline, report).buffers)
    assert changes[standing:] == [report.level + above for above in report.timeline.sums()]
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)


def test_what_is_known_of_an_allocation_stands_in_place_of_its_stack(tmp_path):
    (trace,) = written(REPORT, tmp_path / "s.pickle")["device_traces"]
    decision = next(decision for decision in REPORT.decisions if str(decision.action) == "save")
    known = next(item for item in REPORT.described if item.name == decision.name)
    file, _, line = known.source.rpartition(":")
    frames = next(entry["frames"] for entry in trace if f" {known.name} " in entry["frames"][0]["name"])
    assert frames == [
        {"filename": file, "line": int(line), "name": f"aten::mul {known.name} bfloat16{list(known.shape)}"},
        {"filename": "module", "line": 0, "name": known.module},
        {"filename": "kind", "line": 0, "name": "saved"},
        {"filename": "decision", "line": 0, "name": f"save: {decision.why}"},
    ]


def test_blocks_fill_their_segments_and_hold_what_is_left(tmp_path):
    found = written(REPORT, tmp_path / "s.pickle")
    _, live = sums(found["device_traces"][0])
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    active = {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}
    assert active == live
    for segment in found["segments"]:
        ends = itertools.accumulate((block["size"] for block in segment["blocks"]), initial=segment["address"])
        assert list(ends)[:-1] == [block["address"] for block in segment["blocks"]]
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    begun = [entry for entry in found["device_traces"][0] if entry["action"] == "segment_alloc"]
    assert [(entry["addr"], entry["size"]) for entry in begun] == [
        (segment["address"], segment["total_size"]) for segment in found["segments"]
    ]


def test_torchs_own_reader_takes_it(tmp_path, capsys):
    found = written(REPORT, tmp_path / "s.pickle")
    assert f"segments: {len(found['segments'])}" in _memory_viz.segsum(found)
    assert "free completed for" in _memory_viz.trace(found)
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        page = draw(found)
        ((data,),) = [json.loads(line[line.index("[") :]) for line in page.splitlines() if "local_files = " in line]
        assert data["name"] == "snapshot.pickle"
    assert "kind:0:gradients" in _memory_viz.memory(found, format_flamegraph=str)
    assert "stream_0;seg_" in _memory_viz.segments(found, format_flamegraph=str)
    less = written(synthetic(3, 60), tmp_path / "less.pickle")
    _memory_viz.compare(found["segments"], less["segments"], format_flamegraph=str)
    assert "only_before" in capsys.readouterr().out
    assert (tmp_path / "s.pickle").read_bytes()[:2] == bytes([0x80, PROTOCOL])


def test_a_storage_that_is_given_away_stays_where_it_is(tmp_path):
    events = (
        Event("forward", "buf0", 8, at=1.0),
        Event("backward", "buf0", -8, at=5.0),
        Event("backward", "tangent", -128, at=6.0),
    )
    timeline = Timeline(events, (Reuse(1, "buf0", "next"),))
    report = dataclasses.replace(example(), timeline=timeline, device="cuda:2", works=(), buffers=())
    traces = written(report, tmp_path / "s.pickle")["device_traces"]
    assert traces[:2] == [[], []]
    found, _ = sums(traces[2])
    assert max(found) == report.level + 8 and found[-1] == report.level - 128
    own = [entry for entry in traces[2] if entry["size"] == 8]
    assert [entry["action"] for entry in own] == ["alloc", "free_requested", "free_completed"] * 2
    assert len({entry["addr"] for entry in own}) == 1
    assert [own[0]["frames"][0]["name"], own[3]["frames"][0]["name"]] == ["buf0", "next"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError):
        example().snapshot(tmp_path / "no" / "s.pickle")
