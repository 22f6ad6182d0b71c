import dataclasses
import io
import json
import sys

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from memgraph.base.errors import Binding
from memgraph.facts.actions import Offload, Recompute, Save, Tile
from memgraph.planner.decisions import Decision, Event, Refusal, Timeline, Where
from memgraph.reporting.figures import Source
from memgraph.reporting.log import ReportLog
from memgraph.reporting.picture import draw
from memgraph.reporting.report import Report

MIB = 1024**2
FITS, DROPPED = "the backward reads it and it fits", "dropped for the budget"


def layer(i):
    at, file = f"model.layers.{i}", "/site/llama.py"
    return (
        Decision(f"attn_{i}", 4 * MIB, Save(), f"{at}.attn", f"{file}:10", 0.0, FITS),
        Decision(f"up_{i}", 8 * MIB, Recompute(), f"{at}.mlp.up", f"{file}:20", 1e-3, DROPPED),
    )


def example():
    decisions = (
        *(decision for i in range(3) for decision in layer(i)),
        Decision("logits", 100 * MIB, Save(), "lm_head", "/site/llama.py:90", 0.0, "rule 'lm_head'"),
        Decision("seeds", 8, Save(), "", "", 0.0, "must not be computed twice"),
    )
    unplanned = (
        *(Event("forward", d.name, d.bytes) for d in decisions),
        *(Event("backward", d.name, -d.bytes) for d in reversed(decisions)),
    )
    planned = tuple(event for event in unplanned if not event.value.startswith("up"))
    return Report(
        key="k",
        graph="loss_fn [0]",
        device="cuda:0",
        requested="200MiB",
        budget=200 * MIB,
        reserve=10 * MIB,
        baseline=50 * MIB,
        unplanned_peak=50 * MIB + Timeline(unplanned).peak,
        predicted_peak=50 * MIB + Timeline(planned).peak,
        source_of_peak="inductor wrapper",
        source_of_unplanned_peak="inductor wrapper",
        predicted_time=0.107,
        unplanned_time=0.1,
        recompute_time=0.007,
        decisions=decisions,
        refusals=(Refusal("rule 'foo.*': 'recompute'", "no module path of this graph matches the pattern"),),
        timeline=Timeline(planned),
        unplanned_timeline=Timeline(unplanned),
        binding=(Binding("seeds", 8), Binding("logits", 100 * MIB, "lm_head", "/site/llama.py:90")),
        stages=(("planning", 1.25), ("Inductor forward", 12.0), ("planning", 0.25)),
        notes=("a note with [bold]brackets[/bold]",),
        versions=(("torch", "2.13.0"),),
        attempts=2,
    )


GOLDEN = """\
memgraph: loss_fn [0] on cuda:0
saves 24.0 MiB of a peak of 186.0 MiB = 12.9 % (above the baseline: 17.6 %); predicted slow-down 7.0 %
 budget          200.0 MiB (asked for: 200MiB; 10.0 MiB of it held back)
 baseline        50.0 MiB (allocated when the step starts)
 unplanned peak  186.0 MiB (Inductor's own partition)
 predicted peak  162.0 MiB (by the inductor wrapper; 28.0 MiB to spare)
 step time       100.0 ms -> 107.0 ms (7.0 ms of it recomputation)
 times           with built-in figures, not calibrated on this machine: run `memgraph calibrate`

Modules (sums over equal layers)
 module                     saved  recomputed  in time  why
--------------------------------------------------------------------------------------------------------------
 model.layers.0..2  x3   12.0 MiB    24.0 MiB   3.0 ms  dropped for the budget; the backward reads it and it
                                                        fits
   .attn                 12.0 MiB           -        -  the backward reads it and it fits
   .mlp                         -    24.0 MiB   3.0 ms  dropped for the budget
 lm_head                100.0 MiB           -        -  rule 'lm_head'
 (no module)                  8 B           -        -  must not be computed twice

Values kept
 value       bytes  times  module                  source       why
--------------------------------------------------------------------------------------------------
 logits  100.0 MiB     x1  lm_head                 llama.py:90  rule 'lm_head'
 attn_0    4.0 MiB     x3  model.layers.0..2.attn  llama.py:10  the backward reads it and it fits
 seeds         8 B     x1                                       must not be computed twice

Values dropped
 value    bytes  times  module                    source       why
--------------------------------------------------------------------------------------
 up_0   8.0 MiB     x3  model.layers.0..2.mlp.up  llama.py:20  dropped for the budget

Live at the predicted peak
     bytes  value   module   source
-----------------------------------------
 100.0 MiB  logits  lm_head  llama.py:90
       8 B  seeds

Refused
 what                       why
-----------------------------------------------------------------------------
 rule 'foo.*': 'recompute'  no module path of this graph matches the pattern

Notes
 a note with [bold]brackets[/bold]

Compilation
 stage               time
--------------------------
 planning  x2       1.5 s
 Inductor forward  12.0 s
 attempts               2
 torch             2.13.0
"""


def test_details():
    assert example().details() == GOLDEN.rstrip("\n")


def test_text_is_plain_and_narrow_whatever_the_surroundings(monkeypatch):
    plain = str(example())
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "40"), ("TTY_COMPATIBLE", "1")):
        monkeypatch.setenv(name, value)
    assert str(example()) == plain
    assert plain.isascii() and "\x1b" not in plain and max(map(len, plain.splitlines())) <= 110


def test_rich_shows_styles_at_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=110)
    console.print(example())
    assert "\x1b[1m" in console.file.getvalue() and "[bold]brackets[/bold]" in console.file.getvalue()


ESTIMATED = {"source_of_unplanned_peak": "graph sweep"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"predicted_peak": 174 * MIB + 8},
            "saves nothing of a peak of 174.0 MiB; predicted slow-down 7.0 %",
        ),
        ({"predicted_peak": 192 * MIB}, "needs 6.0 MiB more than a peak of 186.0 MiB = 3.2 %"),
        ({"predicted_time": 0.09}, "predicted speed-up 10.0 %"),
        ({"unplanned_time": 0.0}, "slow-down unknown"),
        ({"predicted_peak": 190 * MIB + 1}, "1 B OVER the budget"),
        ({"budget": None, "requested": "None"}, "none (asked for: None"),
        ({"cached": True}, "from a warm cache"),
        ({"calibrated": True}, "times           with figures measured on this machine"),
        (ESTIMATED, "saves about 24.0 MiB of a peak of about 186.0 MiB = 12.9 %"),
        (ESTIMATED, "unplanned peak  about 186.0 MiB (Inductor's own partition, estimated by the graph sweep)"),
        (ESTIMATED | {"predicted_peak": 192 * MIB}, "peaks at 192.0 MiB, where plain Inductor is estimated at 186.0"),
        (
            ESTIMATED | {"source_of_peak": "graph sweep"},
            "predicted peak  about 162.0 MiB (estimated by the graph sweep; about 28.0 MiB to spare)",
        ),
    ],
)
def test_head_says_what_is_unusual(changes, expected):
    report = dataclasses.replace(example(), unplanned_peak=186 * MIB, **changes)
    if "nothing" in expected:
        report = dataclasses.replace(report, unplanned_peak=report.predicted_peak)
    head = "\n".join(report.details().splitlines()[:9])
    assert expected in head
    if report.source_of_unplanned_peak == "graph sweep":
        assert "more than" not in head  # an estimate shows no need for more memory


def test_no_name_is_broken_and_nothing_is_cut_in_text():
    """A name longer than a line makes the text wider; at a terminal that is too narrow it is folded, never cut."""
    module = "model.language_model.layers.0.feed_forward.post_attention_layernorm_of_the_second_residual_branch"
    decisions = (
        Decision("native_layer_norm_backward_17", MIB, Save(), module, "/site/modeling_long.py:1234", 0, FITS),
    )
    binding = (Binding("native_layer_norm_backward_17", MIB, module, "/site/modeling_long.py:1234"),)
    refusals = (Refusal(f"tile {module}", f"{module} is no region"),)
    report = dataclasses.replace(example(), decisions=decisions, binding=binding, refusals=refusals)
    text = report.details()
    within = ".feed_forward.post_attention_layernorm_of_the_second_residual_branch"
    assert text.count(f"model.language_model.layers.0{within}") == 4  # kept, live, refused: what and why
    assert text.count("modeling_long.py:1234") == 2 and text.count("native_layer_norm_backward_17") == 2
    assert FITS in " ".join(text.split())
    assert f"model.language_model.layers.0{within}" in str(report) and "modeling_long.py:1234" in str(report)
    console = Console(file=io.StringIO(), width=60)
    console.print(report)
    narrow = "".join(console.file.getvalue().split())
    assert max(map(len, console.file.getvalue().splitlines())) <= 60
    assert "native_layer_norm_backward_17" in narrow


def test_what_is_never_held_is_not_counted_as_dropped():
    fused = Decision("one_hot", 1300 * MIB, Recompute(), "", "f.py:1", 0.0, DROPPED, fused=True)
    text = dataclasses.replace(example(), decisions=(*layer(0), fused)).details()
    modules, values = text[text.index("Modules") : text.index("Values kept")], text[text.index("dropped\n") :]
    (row,) = (row for row in modules.splitlines() if "(no module)" in row)
    assert row.count(" - ") == 3 and "1.3 GiB" not in text and "never held" in modules and "one_hot" not in values


sizes = st.integers(-(2**60), 2**60)
seconds = st.floats(allow_nan=False)
words = st.text(max_size=8)
decisions = st.builds(
    Decision,
    words,
    sizes,
    st.sampled_from([Save(), Recompute(), Offload("nvme"), Tile(4)]),
    words,
    words,
    seconds,
    words,
    fused=st.booleans(),
)
events = st.builds(Event, st.sampled_from(["forward", "backward"]), words, sizes, st.sampled_from(Where))
timelines = st.builds(Timeline, st.lists(events, max_size=5).map(tuple))


def several(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


reports = st.builds(
    Report,
    **dict.fromkeys(("key", "graph", "device", "requested"), words),
    **dict.fromkeys(("source_of_peak", "source_of_unplanned_peak"), st.sampled_from(Source)),
    calibrated=st.booleans(),
    **dict.fromkeys(("reserve", "baseline", "unplanned_peak", "predicted_peak", "attempts"), sizes),
    **dict.fromkeys(("predicted_time", "unplanned_time", "recompute_time"), seconds),
    **dict.fromkeys(("timeline", "unplanned_timeline"), timelines),
    budget=st.none() | sizes,
    decisions=several(decisions),
    refusals=several(st.builds(Refusal, words, words)),
    binding=several(st.builds(Binding, words, sizes, words, words)),
    stages=several(st.tuples(words, seconds)),
    notes=several(words),
    versions=several(st.tuples(words, words)),
    cached=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(reports)
def test_json_gives_the_report_back(report):
    back = Report.from_json(report.to_json())
    assert back == report and hash(back) == hash(report) and back.to_json() == report.to_json()


@settings(max_examples=30, deadline=None)
@given(reports)
def test_any_report_can_be_printed(report):
    assert str(report).startswith("memgraph:") and repr(report)


def test_every_field_reaches_json():
    assert set(json.loads(example().to_json())) == {field.name for field in dataclasses.fields(Report)} | {"reuses"}


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{}", '"x"', example().to_json()[:-1], example().to_json().replace('"key"', '"kee"')],
)
def test_from_json_refuses_what_is_no_report(text):
    with pytest.raises(ValueError):
        Report.from_json(text)


EMPTY = dataclasses.replace(
    example(), timeline=Timeline(), unplanned_timeline=Timeline(), budget=None, baseline=0, graph="$x_[0]"
)


@pytest.mark.parametrize("report", [example(), EMPTY, dataclasses.replace(EMPTY, unplanned_peak=0, predicted_peak=0)])
def test_plot_is_a_picture(report, tmp_path):
    report.plot(tmp_path / "memory.png")
    pixels = matplotlib.image.imread(tmp_path / "memory.png")
    assert pixels.shape[0] > 400 and pixels.shape[1] > 800
    assert 0.01 < np.mean(pixels[..., :3].min(axis=2) < 0.95) < 0.9
    if report.budget is not None:
        red, green, blue = (pixels[..., i] for i in range(3))
        row = np.argmax(np.sum((red > 0.7) & (green < 0.4) & (blue < 0.4), axis=1))
        line = (red[row] > 0.7) & (green[row] < 0.4)
        assert np.sum(line[1:] != line[:-1]) > 40  # dashes, over the width of the axes
    report.plot(tmp_path / "memory")  # no suffix
    assert (tmp_path / "memory.png").exists()


def test_the_picture_marks_the_peaks_that_its_legend_names():
    figure = draw(dataclasses.replace(example(), **ESTIMATED))
    lines = figure.axes[0].get_lines()
    marked = [line.get_ydata()[0] for line in lines if line.get_marker() == "o"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert marked == pytest.approx([186.0, 162.0], abs=0.01)
    assert "unplanned, peak about 186.0 MiB" in labels and "planned, peak 162.0 MiB" in labels


def test_plot_does_without_pyplot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import raises
    example().plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000


def test_log_keeps_the_newest():
    log = ReportLog(limit=3)
    with pytest.raises(LookupError, match="requires a gradient"):
        log.newest()
    assert log.all() == []
    numbered = [dataclasses.replace(example(), key=str(i)) for i in range(5)]
    for report in numbered:
        log.append(report)
    assert log.newest() is numbered[4] and log.all() == numbered[2:]
    log.all().clear()
    assert len(log.all()) == 3


def test_offloaded_values_have_a_column_a_line_and_a_table():
    moved = Decision("mm", 3 * 2**20, Offload("nvme"), "model.layers.0.mlp", "model.py:7", 0.0, "its copies cost less")
    offloaded = dataclasses.replace(example(), decisions=(moved,), stall_time=0.25)
    assert "to the disk" in str(offloaded) and "3.0 MiB a step, out and back" in str(offloaded)
    text = offloaded.details()
    assert "offloaded to the disk" in text and "3.0 MiB a step, out and back" in text
    assert "250.0 ms waiting for copies" in text
    assert "Values offloaded" in text and "nvme: its copies cost less" in text
    assert dataclasses.replace(example(), decisions=(moved,)).bytes_on("nvme") == 3 * 2**20
    assert "offloaded" not in str(dataclasses.replace(example(), decisions=()))


def test_without_matplotlib_the_picture_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # an import of it fails
    with pytest.raises(ModuleNotFoundError, match=r"torch-memgraph\[plot\]"):
        example().plot(tmp_path / "report.png")


def test_a_module_path_with_a_digit_that_is_no_number():
    odd = dataclasses.replace(example(), decisions=(Decision("a", 1, Save(), "layers.²", "", 0.0, FITS),))
    assert "layers.²" in str(odd)
